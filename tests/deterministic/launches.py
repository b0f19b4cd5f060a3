"""Counts what a GPU would be given to do in a layer of a model: launches of kernels.

Those of the fork's own operations are the emulation's; any other operation of PyTorch that reads or
writes numbers is one at least.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vllm.model_executor.layers.attention import Attention

_NO_LAUNCH = ("empty", "new_empty", "empty_like", "empty_strided", "_unsafe_view")


class LayerLaunches:
    """Counts the launches of each step in a layer.

    Args:
        layer: of a model in this process.
        library: the emulated operations.

    Attributes:
        steps: of each step how many tokens it has, and the names of what was launched.
    """

    def __init__(self, layer: nn.Module, library: str) -> None:
        self._counter = ctypes.CDLL(library).emulated_launches
        self._counter.restype = ctypes.c_int64
        self._mode: _Operations | None = None
        self.steps: list[tuple[int, list[str]]] = []
        for module in layer.modules():
            if isinstance(module, Attention):
                module.use_direct_call = True  # so that what is inside is seen
        layer.register_forward_pre_hook(self._begin, with_kwargs=True)
        layer.register_forward_hook(self._end)

    def _begin(self, layer: nn.Module, args: Any, kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        self._tokens = next(len(x) for x in given if isinstance(x, torch.Tensor))
        self._mode = _Operations(self._counter)
        self._mode.__enter__()

    def _end(self, layer: nn.Module, args: Any, output: Any) -> None:
        assert self._mode is not None
        self._mode.__exit__(None, None, None)
        self.steps.append((self._tokens, self._mode.launched))


class _Operations(TorchDispatchMode):
    def __init__(self, counter: Any) -> None:
        super().__init__()
        self._counter = counter
        self.launched: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = self._counter()
        result = func(*args, **(kwargs or {}))
        namespace, _, name = func._schema.name.partition("::")
        count = int(not func.is_view and name not in _NO_LAUNCH)
        if namespace == "vllm_fork":
            count = self._counter() - before
        self.launched += [name] * count
        return result
