"""Puts the portable kernels under a model of Transformers that is to be trained."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.opt.modeling_opt import OPTAttention
from transformers.pytorch_utils import Conv1D

from vllm.fork.models.modules import replace_modules

from ..activation import function_of
from ..attention import NAME_IN_TRAINING
from ..experts import function_of_experts, is_router, renormalises
from ..gradients.rotary import DifferentiableRotaryEmbedding
from ..hooks import check_they_stay, modules_with_hooks
from ..mlp import portable_gated_mlp
from ..model import TOGETHER, scale_in_kernel, take_cap
from ..norm import PortableRMSNorm, portable_norm
from ..rehearsal import rehearse
from ..rotary import portable_rotary, use_rotations
from ..support import check_model
from .attention import register_attention
from .classes import become
from .dropout import refuse_dropout
from .forward import prepare_forwards
from .holders import check_holders
from .mixture import TrainedExperts, TrainedRouter
from .modules import (
    DifferentiableActivation,
    TrainedGatedMLP,
    TrainedHead,
    TrainedLayerNorm,
    TrainedLinear,
    TrainedRMSNorm,
)
from .weights import ExpertWeights, LayerWeights

__all__ = ["attach_for_training"]

_GATES = ("gate_proj", "up_proj")


@torch.no_grad()
def attach_for_training(
    model: PreTrainedModel, *, max_length: int | None = None
) -> PreTrainedModel:
    """Give the modules of a model portable forwards with gradients, in place.

    Logits are those of `attach_kernels` and of the engine to the last bit, in ``train()`` and in
    ``eval()``. Gradients are PyTorch's, see `..gradients`. Parameters, their names, ``state_dict``,
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
    hooked = modules_with_hooks(model)
    refuse_dropout(model)
    register_attention()
    model.set_attn_implementation(NAME_IN_TRAINING)
    for module in list(model.modules()):
        use_rotations(module)
    rotary = partial(portable_rotary, max_length=max_length, form=DifferentiableRotaryEmbedding)
    replace_modules(model, rotary)
    for module in list(model.modules()):
        _change_norm(module)
        _change_mixture(module)
        _change_mlp(module)
    replace_modules(model, lambda name, module: _activation(module))
    _change_head(model)
    for module in list(model.modules()):
        _change_linear_layers(module)
    check_they_stay(model, hooked)
    check_holders(model)
    _rehearse(model)
    prepare_forwards(model)
    if model.generation_config is not None:
        model.generation_config.cache_implementation = None  # a static cache would be refused
    return model


def _change_norm(module: Any) -> None:
    norm: Any = portable_norm(module)
    if isinstance(norm, PortableRMSNorm):
        offset = norm.weight_offset
        attributes = {"portable_epsilon": norm.variance_epsilon, "portable_offset": offset}
        become(module, TrainedRMSNorm, **attributes)
    elif norm is not None:
        become(module, TrainedLayerNorm, portable_epsilon=norm.eps)


def _change_mixture(module: Any) -> None:
    if is_router(module):
        become(
            module,
            TrainedRouter,
            portable_weights=LayerWeights([module]),
            portable_is_renormalised=renormalises(module),
        )
    elif (function := function_of_experts(module)) is not None:
        weights = ExpertWeights(module)
        become(module, TrainedExperts, portable_weights=weights, portable_function=function)


def _change_mlp(module: Any) -> None:
    mlp = portable_gated_mlp(module)
    if mlp is not None:
        names = _GATES if len(mlp.gate_and_up) > 1 else ("gate_up_proj",)
        become(module, TrainedGatedMLP, portable_inputs=names, portable_function=mlp.function)


def _activation(module: nn.Module) -> DifferentiableActivation | None:
    function = function_of(module)
    return None if function is None else DifferentiableActivation(function)


def _change_head(model: Any) -> None:
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return
    cap = take_cap(model.config)
    if cap is not None:
        model.save_pretrained = partial(_save_with_cap, model, cap)
    become(head, TrainedHead, portable_weights=LayerWeights([head]), portable_cap=cap)


def _save_with_cap(model: Any, cap: float, *arguments: Any, **options: Any) -> None:
    """Save a model (``save_pretrained``) with the cap that its head has applied."""
    model.config.final_logit_softcapping = cap
    try:
        type(model).save_pretrained(model, *arguments, **options)
    finally:
        take_cap(model.config)


def _change_linear_layers(parent: nn.Module) -> None:
    """Give the linear layers of a module their form; those with one input have weights as one."""
    gates = _GATES if isinstance(parent, TrainedGatedMLP) else ()
    for names in (TOGETHER, gates):
        layers = [getattr(parent, name, None) for name in names]
        if layers and all(type(layer) is nn.Linear for layer in layers):
            _change_together(layers)
    for layer in parent.children():
        if type(layer) in (nn.Linear, Conv1D):
            _change_together([layer])
    if isinstance(parent, OPTAttention):
        scale_in_kernel(parent)


def _change_together(layers: Sequence[Any]) -> None:
    weights = LayerWeights(layers)
    for layer in layers:
        become(layer, TrainedLinear, portable_weights=weights)


def _rehearse(model: nn.Module) -> None:
    """Let the model compute in both modes, and leave each module in its own."""
    modes = [(module, module.training) for module in model.modules()]
    rehearse(model.eval())
    rehearse(model.train(), with_cache=False)
    for module, mode in modes:
        module.training = mode
