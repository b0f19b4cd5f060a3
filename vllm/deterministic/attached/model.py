"""Puts the portable kernels under a model of Transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from vllm.deterministic.elementwise import PortableActivation
from vllm.deterministic.fusion import fused_products
from vllm.fork.models.modules import replace_modules

from .activation import function_of
from .dropout import refuse_dropout
from .forward import prepare_forwards
from .gate import adopt_gate
from .holders import check_holders
from .hooks import check_they_stay, modules_with_hooks
from .interface import NAME, NAME_IN_TRAINING, register_attention, scale_in_kernel
from .linear import adopt_head, adopt_linear_layers, take_fields
from .mixture import adopt_mixture
from .mlp import adopt_gated_mlp
from .norm import adopt_norm
from .rehearsal import rehearse
from .rotary import portable_rotary, use_rotations
from .sealed import seal
from .states import adopt_states
from .support import check_model

__all__ = ["attach_for_training", "attach_kernels"]

_FORMS = (
    adopt_states,
    adopt_gate,
    adopt_norm,
    adopt_mixture,
    adopt_gated_mlp,
    adopt_linear_layers,
    scale_in_kernel,
)
"""Each is asked about all modules before the next: what several know is the first one's."""


@torch.no_grad()
def attach_kernels(model: PreTrainedModel, *, max_length: int | None = None) -> PreTrainedModel:
    """Give the modules of a model portable forwards, in place.

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
    model.requires_grad_(False)
    _give_forms(model, max_length, training=False)
    seal(model)
    with fused_products(model.device):
        rehearse(model)
    prepare_forwards(model, is_sealed=True)
    return model


@torch.no_grad()
def attach_for_training(
    model: PreTrainedModel, *, max_length: int | None = None
) -> PreTrainedModel:
    """Give the modules of a model portable forwards with gradients, in place.

    Logits are those of `attach_kernels` and of the engine to the last bit, in ``train()`` and in
    ``eval()``. Gradients are PyTorch's, see `.gradients`. Parameters, their names, ``state_dict``,
    ``save_pretrained``, optimizers and gradient checkpointing are as before, and PEFT may put LoRA
    on the attached model. Packed weights take as much memory as the parameters, beside them; they
    are made anew in the first forward after a parameter has changed.

    Where a forward without a cache is given an ``attention_mask`` but no ``position_ids``,
    positions are counted from each row's first token, as in ``generate()``.

    Args:
        model: as of `attach_kernels`, in either mode and without dropout.
        max_length: likewise.

    Returns:
        `model`. If an error was raised, it is of no use any more.

    Raises:
        TypeError: `model` is none of Transformers.
        ValueError: the model, or a module that is named, has no portable form, or has dropout.
        InexactOperationError: it computes something between its modules that has none.
    """
    check_model(model, training=True)
    refuse_dropout(model)
    taken = _give_forms(model, max_length, training=True)
    if taken:
        model.save_pretrained = partial(_save_with_fields, model, taken)
    _rehearse_both_modes(model)
    prepare_forwards(model, is_sealed=False)
    return model


def _give_forms(model: Any, max_length: int | None, *, training: bool) -> dict[str, Any]:
    """Give the modules of a model their forms; return the fields of `take_fields`."""
    hooked = modules_with_hooks(model)
    register_attention()
    model.set_attn_implementation(NAME_IN_TRAINING if training else NAME)
    modules = list(model.modules())
    for module in modules:
        use_rotations(module)
    replace_modules(model, lambda name, module: portable_rotary(name, module, max_length))
    taken = adopt_head(model)
    for adopt in _FORMS:
        for module in modules:
            adopt(module)
    replace_modules(model, lambda name, module: _activation(module))
    check_they_stay(model, hooked, training=training)
    check_holders(model)
    if model.generation_config is not None:
        model.generation_config.cache_implementation = None  # a static cache would be refused
    return taken


def _activation(module: nn.Module) -> PortableActivation | None:
    function = function_of(module)
    return None if function is None else PortableActivation(function)


def _save_with_fields(model: Any, taken: dict[str, Any], *arguments: Any, **options: Any) -> None:
    """Save a model (``save_pretrained``) with the fields that its head has taken."""
    for name, value in taken.items():
        setattr(model.config, name, value)
    try:
        type(model).save_pretrained(model, *arguments, **options)
    finally:
        take_fields(model.config)


def _rehearse_both_modes(model: nn.Module) -> None:
    """Let the model compute in both modes, and leave each module in its own."""
    modes = [(module, module.training) for module in model.modules()]
    rehearse(model.eval())
    rehearse(model.train(), with_cache=False)
    for module, mode in modes:
        module.training = mode
