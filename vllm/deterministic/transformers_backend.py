"""Modules of Transformers' own that vLLM's Transformers backend keeps."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from vllm.deterministic.attached.activation import function_of
from vllm.deterministic.attached.form import Form
from vllm.deterministic.attached.norm import adopt_norm
from vllm.deterministic.attached.rotary import portable_rotary, use_rotations
from vllm.deterministic.attached.sample import TOLERANCE, largest_difference, rows_of_all_sizes
from vllm.deterministic.elementwise import PortableActivation
from vllm.deterministic.fusion import Source
from vllm.fork_kernels.portable.functions import Function, portable_gated
from vllm.model_executor.layers.linear import LinearBase

_SAMPLE = 16  # columns


def portable_hf_module(name: str, module: nn.Module, max_length: int) -> nn.Module | None:
    """Return what takes the place of a module of Transformers, or the module; None for others.

    Its rotations are made portable in the file that has its code.

    Args:
        name: of the module.
        module: of a model of vLLM.
        max_length: tokens of the longest sequence.

    Raises:
        ValueError: it rotates in a way that is not specified.
    """
    if not type(module).__module__.startswith("transformers."):
        return None
    use_rotations(module)
    if (function := function_of(module)) is not None:
        return PortableActivation(function)
    if _use_gated_forward(module):
        return module
    adopt_norm(module)
    return module if isinstance(module, Form) else portable_rotary(name, module, max_length)


def _use_gated_forward(module: Any) -> bool:
    """Let an MLP whose gate and up are one product round once behind both; return whether it is
    one. (vLLM's backend makes its own layer of those that are two.)
    """
    layers = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    activation = getattr(module, "activation_fn", getattr(module, "act_fn", None))
    if activation is None or not all(isinstance(layer, LinearBase) for layer in layers):
        return False
    function = getattr(activation, "function", None) or function_of(activation)
    if function is None or not _is_gated(module, function):
        return False
    module.forward = partial(_forward_gated, Source(), module, function)
    return True


def _is_gated(module: Any, function: Function) -> bool:
    """Return whether an MLP computes the gate between its layers, and nothing else."""
    trial = copy.copy(module)
    same = nn.Identity()
    trial._modules = {**module._modules, "gate_up_proj": same, "down_proj": same}
    rows = rows_of_all_sizes(2 * _SAMPLE, torch.float32)
    return largest_difference(portable_gated(rows, function), trial(rows)) < TOLERANCE


def _forward_gated(source: Source, module: Any, function: Function, x: torch.Tensor) -> Any:
    opened = portable_gated(module.gate_up_proj(x), function, source.consumer)
    return module.down_proj(source.made(opened))
