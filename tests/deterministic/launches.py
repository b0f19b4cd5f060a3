"""Counts what a GPU would be given to do in a layer of a model: launches of kernels.

Those of the fork's own operations are the emulation's, whose kernels may begin while the one before
still runs; any other operation of PyTorch that reads or writes numbers is one at least.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.emulated_gpu.launches import Launches, has_launches, load
from vllm.model_executor.layers.attention import Attention


class LayerLaunches:
    """Counts the launches of each step in a layer.

    Args:
        layer: of a model in this process.
        library: the emulated operations.

    Attributes:
        steps: of each step how many tokens it has, and the names of what was launched.
    """

    def __init__(self, layer: nn.Module, library: str) -> None:
        self._launches = load(library)
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
        self._mode = _Operations(self._launches)
        self._mode.__enter__()

    def _end(self, layer: nn.Module, args: Any, output: Any) -> None:
        assert self._mode is not None
        self._mode.__exit__(None, None, None)
        self._launches.finish()
        self.steps.append((self._tokens, self._mode.launched))


class _Operations(TorchDispatchMode):
    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self._launches = launches
        self.launched: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = self._launches.count()
        self._launches.begin(func, args, kwargs)
        result = func(*args, **(kwargs or {}))
        self._launches.keep(result)
        namespace, _, name = func._schema.name.partition("::")
        count = int(has_launches(func))
        if namespace == "vllm_fork":
            count = self._launches.count() - before
        self.launched += [name] * count
        return result
