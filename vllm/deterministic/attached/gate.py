"""Attention whose result a gate weighs (Qwen3-Next, Qwen3.5): sigmoid and product are each rounded.

A model's code calls the sigmoid between its modules, so that no module can be given a form for it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from vllm.fork_kernels.portable.functions import Function

from .form import Form, become
from .gradients.functions import elementwise

__all__ = ["adopt_gate"]

_SIGMOIDS = (torch.sigmoid, torch.Tensor.sigmoid, nn.functional.sigmoid)


class _PortableSigmoid(TorchFunctionMode):
    """Puts the portable sigmoid into the place of PyTorch's."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """As of ``TorchFunctionMode``."""
        if func in _SIGMOIDS:
            return elementwise(args[0], Function.SIGMOID)
        return func(*args, **(kwargs or {}))


class GatedAttentionForm(Form):
    """Attention that calls a sigmoid."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """As the module's own class."""
        own: Any = super()
        with _PortableSigmoid():
            return own.forward(*arguments, **options)


def adopt_gate(module: nn.Module) -> None:
    """Give attention whose forward names a sigmoid its form."""
    forward = inspect.unwrap(type(module).forward)
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    if "Attention" in type(module).__name__ and "sigmoid" in names:
        become(module, GatedAttentionForm)
