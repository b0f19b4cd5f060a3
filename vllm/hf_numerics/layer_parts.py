"""What has to be so for decoder layers to be computed without calling their modules."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch.nn.modules.module as torch_module
from torch import nn

from vllm.hf_numerics.activations import parts_of_runs

MOST_ROWS = 64
"""More are multiplied by the library of matrix products (`ManyRows`), beside which calls of modules
take little time."""


class LayerParts:
    """The decoder layers of a model and their modules, as they are now.

    Args:
        layers: of the model, each with ``self_attn`` and ``mlp``.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        own: list[Any] = list(layers)
        parts = [part for layer in own for part in (layer, layer.self_attn, layer.mlp)]
        self._children = [part._modules for part in (layers, *parts)]
        self._modules = self._current()
        self._hooks = [
            hooks
            for module in self._modules
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ] + [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]

    @property
    def are_unchanged(self) -> bool:
        """Whether no module was replaced, and nobody watches what goes between them."""
        return not any(self._hooks) and self._current() == self._modules

    def _current(self) -> list[Any]:
        """The layers, and the modules that they, their attention and their MLPs call."""
        return list(chain.from_iterable(one.values() for one in self._children))


def counts_without_remainder(width: int) -> frozenset[int]:
    """Return for how many single rows an activation can be computed at once (`activations`).

    Args:
        width: elements of a row.
    """
    counts = range(1, MOST_ROWS + 1)
    return frozenset(n for n in counts if len(parts_of_runs(((True, 0, n),), width)) == 1)
