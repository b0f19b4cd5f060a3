"""LoRA adapters of a linear layer; see ``docs/numerics/products.md``, "Adapters".

An adapter adds B A x to the product of its layer, in float32 and before the one rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm.fork_kernels.portable.product import PackedWeight, portable_product


@dataclass(frozen=True)
class Expansion:
    """B of one of a layer's parts, which are q, k and v, or gate and up, or all of it.

    Attributes:
        lora_ranks: which of the reduced numbers it takes.
        outputs: of the layer, on this tensor-parallel rank.
        weight: [outputs, LoRA ranks].
    """

    lora_ranks: slice
    outputs: slice
    weight: PackedWeight


@dataclass(frozen=True)
class PackedAdapter:
    """An adapter of a linear layer, or a tensor-parallel rank's part of it.

    Attributes:
        reduction: A of all parts of the layer, [sum of LoRA ranks, in_features].
        expansions: B of each.
    """

    reduction: PackedWeight
    expansions: list[Expansion]

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return A x.

        Args:
            x: bfloat16 or float16 [n, in_features].

        Returns:
            float32 [n, sum of LoRA ranks], to be added to those of other ranks with `sum_partials`
            if the input channels are split.
        """
        return portable_product(x, self.reduction, dtype=torch.float32)

    def expand(self, reduced: torch.Tensor, share: torch.Tensor, rows: torch.Tensor) -> None:
        """Write B A x into the rows of requests with this adapter.

        Args:
            reduced: A x, float32 [n, sum of LoRA ranks].
            share: float32 [num_tokens, out_features], changed.
            rows: of `share`, int64 [n].
        """
        for part in self.expansions:
            share[rows, part.outputs] = portable_product(reduced[:, part.lora_ranks], part.weight)
