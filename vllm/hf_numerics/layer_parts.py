"""What has to be so for a decoder layer to be computed without calling its modules."""

from __future__ import annotations

from typing import Any

import torch.nn.modules.module as torch_module

from vllm.hf_numerics.activations import parts_of_runs

MOST_ROWS = 32
"""More are multiplied by the library of matrix products (`ManyRows`), beside which calls of modules
take little time."""


class LayerParts:
    """The modules of a decoder layer, as they are now.

    Args:
        layer: with ``self_attn`` and ``mlp``.
    """

    def __init__(self, layer: Any) -> None:
        self._parts = [part._modules for part in (layer, layer.self_attn, layer.mlp)]
        self._modules = [layer, *self.children]
        self._hooks = [
            hooks
            for module in self._modules
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ] + [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]

    @property
    def are_unchanged(self) -> bool:
        """Whether no module was replaced, and nobody watches what goes between them."""
        return not any(self._hooks) and self.children == self._modules[1:]

    @property
    def children(self) -> list[Any]:
        """The modules that the layer, its attention and its MLP call."""
        first, second, third = self._parts
        return [*first.values(), *second.values(), *third.values()]


def counts_without_remainder(width: int) -> frozenset[int]:
    """Return for how many single rows an activation can be computed at once (`activations`).

    Args:
        width: elements of a row.
    """
    counts = range(1, MOST_ROWS + 1)
    return frozenset(n for n in counts if len(parts_of_runs(((True, 0, n),), width)) == 1)
