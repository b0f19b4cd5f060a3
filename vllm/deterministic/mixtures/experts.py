"""The experts of a layer with portable bits; see ``docs/numerics/operations.md``.

A token's result depends on that token alone: the tokens of an expert are computed together, which
changes no row of a portable product, and each token's experts are added in the order of routing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vllm.deterministic.mixtures.activation import LEAST_PRODUCT, ExpertActivation
from vllm.fork_kernels.portable.product import PackedWeight, portable_product, sum_partials

_MOST_PAIRS = 8192
"""Tokens times their experts that are computed at once, which bounds the memory of outputs."""


@dataclass(frozen=True)
class PackedExperts:
    """The weights of the experts of a layer, or a rank's part of them.

    Attributes:
        gate_up: of each expert, [2 * intermediate_size, hidden_size].
        down: of each expert, [hidden_size, intermediate_size].
        activation: between them; says where the gates are.
        gate_up_bias: [experts, 2 * intermediate_size], or None.
    """

    gate_up: list[PackedWeight]
    down: list[PackedWeight]
    activation: ExpertActivation
    gate_up_bias: torch.Tensor | None = None

    def outputs(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Compute the experts of each token.

        Args:
            x: bfloat16 or float16 [num_tokens, hidden_size].
            indices: of the experts, int64 [num_tokens, experts of a token].

        Returns:
            float32 [num_tokens, experts of a token, hidden_size], to be added to those of other
            ranks with `sum_partials`, and then to the experts' biases.
        """
        pairs = indices.flatten().argsort(stable=True)  # those of an expert together
        counts = indices.flatten().bincount(minlength=len(self.down)).tolist()
        rows = x[pairs // indices.shape[1]].split(counts)
        grouped = torch.cat(
            [self._output(expert, part) for expert, part in enumerate(rows) if len(part)]
        )
        outputs = torch.empty_like(grouped)
        outputs[pairs] = grouped
        return outputs.view(*indices.shape, -1)

    def _output(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        bias = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        gate_up = portable_product(rows, self.gate_up[expert], bias)
        down = self.down[expert]
        return portable_product(self.activation(gate_up, down), down, dtype=torch.float32)


def in_parts(
    compute: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    weights: torch.Tensor,
    indices: torch.Tensor,
) -> torch.Tensor:
    """Return the results of `compute`, which are a row for each token, for some tokens at a time.

    Args:
        compute: takes the other arguments.
        x: [num_tokens, hidden_size].
        weights: [num_tokens, experts of a token].
        indices: of the same shape.
    """
    num_tokens = max(1, _MOST_PAIRS // indices.shape[1])
    parts = zip(*(tensor.split(num_tokens) for tensor in (x, weights, indices)), strict=True)
    return torch.cat([compute(*part) for part in parts])


def with_biases(
    outputs: torch.Tensor, indices: torch.Tensor, biases: torch.Tensor | None
) -> torch.Tensor:
    """Return what experts compute, with the biases of their last products.

    Args:
        outputs: float32 [num_tokens, experts of a token, hidden_size].
        indices: of the experts, int64 [num_tokens, experts of a token].
        biases: [experts, hidden_size], or None.
    """
    return outputs if biases is None else outputs + biases.float()[indices]


def weighted_sums(outputs: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Add the experts of each token.

    Args:
        outputs: float32 [num_tokens, experts of a token, hidden_size]; changed.
        weights: float32 [num_tokens, experts of a token].
        dtype: of the result.

    Returns:
        [num_tokens, hidden_size].
    """
    products = outputs.mul_(weights.unsqueeze(-1))
    products.masked_fill_(products.abs() < LEAST_PRODUCT, 0.0)
    total = products[:, 0]
    for rank in range(1, products.shape[1]):
        total = total + products[:, rank]
    return sum_partials(total.unsqueeze(0).contiguous(), dtype=dtype)  # rounds, to one NaN
