"""Puts the portable kernels under a model of Transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.opt.modeling_opt import OPTAttention
from transformers.pytorch_utils import Conv1D

from vllm.deterministic.elementwise import PortableActivation
from vllm.fork.models.modules import put_module, replace_modules

from ..refusal import attach_refusal as refusal
from .activation import function_of
from .attention import NAME, register_attention
from .experts import portable_experts
from .hooks import check_they_stay, modules_with_hooks
from .linear import PortableHead, PortableLinear, pack_together
from .mlp import portable_gated_mlp
from .norm import PortableLayerNorm, PortableRMSNorm, portable_norm
from .rehearsal import rehearse
from .rotary import portable_rotary, use_rotations
from .support import check_model
from .training import refuse_changes

TOGETHER = ("q_proj", "k_proj", "v_proj")
"""Layers of one input, which vLLM has as one matrix; gates are `portable_gated_mlp`'s."""

_HOLDERS = (nn.Embedding, PortableLinear, PortableLayerNorm, PortableRMSNorm)
"""What may hold parameters afterwards; rows of an embedding are looked up, which is exact."""


@torch.no_grad()
def attach_kernels(model: PreTrainedModel, *, max_length: int | None = None) -> PreTrainedModel:
    """Replace the modules of a model by those with portable bits, in place.

    Logits become float32, and their bits depend on the model and on the tokens before them: not on
    the batch, padding, the cache, how a prompt is cut, threads, instruction sets or machines. The
    arithmetic is that of ``docs/numerics``, and of ``LLM(..., deterministic=True)``.

    Weights are packed one after the other in the place of the originals, so the model takes as much
    memory as before; it can no longer be saved or trained, nor take weights. Positions count from
    each row's first token, as in ``generate()``, and the cache is a ``DynamicCache``, whatever the
    generation configuration says. A cap on the logits moves from the configuration into the head.

    Args:
        model: with bfloat16 or float16 parameters, all on the CPU or on one NVIDIA GPU of compute
            capability 8.0 or later, in evaluation mode.
        max_length: tokens of the longest sequence, which decides between the long and the short
            frequencies of LongRoPE; the engine's ``max_model_len``. By default
            ``config.max_position_embeddings``.

    Returns:
        `model`. If an error was raised, it is of no use any more.

    Raises:
        TypeError: `model` is none of Transformers.
        ValueError: the model, or a module that is named, has no portable form.
        InexactOperationError: it computes something between its modules that has none.
    """
    check_model(model)
    hooked = modules_with_hooks(model)
    model.requires_grad_(False)
    register_attention()
    model.set_attn_implementation(NAME)
    for module in list(model.modules()):
        use_rotations(module)
    replace_modules(model, lambda name, module: portable_rotary(name, module, max_length))
    replace_modules(model, lambda name, module: portable_norm(module))
    replace_modules(model, lambda name, module: portable_experts(module))
    replace_modules(model, lambda name, module: portable_gated_mlp(module))
    replace_modules(model, lambda name, module: _activation(module))
    _replace_head(model)
    _replace_linear_layers(model)
    check_they_stay(model, hooked)
    _check_holders(model)
    rehearse(model)
    refuse_changes(model)
    if model.generation_config is not None:
        model.generation_config.cache_implementation = None  # a static cache would be refused
    return model


def _activation(module: nn.Module) -> PortableActivation | None:
    function = function_of(module)
    return None if function is None else PortableActivation(function)


def _replace_head(model: Any) -> None:
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return
    name = next(name for name, module in model.named_modules() if module is head)
    cap = take_cap(model.config)
    put_module(model, name, PortableHead(pack_together([head])[0], head.bias, cap))


def take_cap(config: Any) -> float | None:
    """Return the cap of logits, which the head applies from now on, and not the model's code."""
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is not None:
        config.final_logit_softcapping = None
    return cap


def _replace_linear_layers(model: nn.Module) -> None:
    for parent in list(model.modules()):
        layers = {
            name: layer
            for name, layer in parent.named_children()
            if type(layer) in (nn.Linear, Conv1D)
        }
        while layers:
            names = [name for name in TOGETHER if all(one in layers for one in TOGETHER)]
            names = names or [next(iter(layers))]
            group = [layers.pop(name) for name in names]
            for name, layer, weight in zip(names, group, pack_together(group), strict=True):
                bias: Any = layer.bias
                setattr(parent, name, PortableLinear(weight, bias))
        if isinstance(parent, OPTAttention):
            scale_in_kernel(parent)


def scale_in_kernel(attention: Any) -> None:
    """Scale OPT's scores, not its queries, which would be rounded once more."""
    attention.portable_scaling, attention.scaling = attention.scaling, 1.0


def _check_holders(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if module._parameters and not isinstance(module, _HOLDERS):
            raise refusal(f"{name} ({type(module).__name__})", "it is not specified")
