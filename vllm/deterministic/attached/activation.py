"""Activations of Transformers with portable bits."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import nn
from torch.nn import functional
from transformers import activations as hf

from vllm.fork_kernels.portable.functions import Function

_FUNCTIONS: dict[type[nn.Module], Function] = {
    nn.ReLU: Function.RELU,
    nn.SiLU: Function.SILU,
    hf.SiLUActivation: Function.SILU,
    hf.GELUActivation: Function.GELU,
    hf.NewGELUActivation: Function.GELU_TANH,
    hf.GELUTanh: Function.GELU_TANH,
    hf.FastGELUActivation: Function.GELU_TANH,
    hf.QuickGELUActivation: Function.QUICK_GELU,
    hf.ReLUSquaredActivation: Function.SQUARED_RELU,
}
"""By exact class: a subclass may compute something else."""

_OF_TORCH: dict[Any, Function] = {
    functional.relu: Function.RELU,
    functional.silu: Function.SILU,
    functional.gelu: Function.GELU,
}


def function_of(module: Any) -> Function | None:
    """Return what an activation of Transformers computes; None if it has no portable form."""
    if type(module) is nn.GELU:
        return Function.GELU_TANH if module.approximate == "tanh" else Function.GELU
    of_torch = isinstance(module, Hashable) and _OF_TORCH.get(module)
    return of_torch or _FUNCTIONS.get(type(module))
