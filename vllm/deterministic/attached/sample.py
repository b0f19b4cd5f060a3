"""Whether a portable module computes what it is to replace: both are asked about a few rows."""

from __future__ import annotations

import torch

TOLERANCE = 0.03
"""Of the relative error: far above the roundings of 16 bits, far below another formula."""


def sample_rows(size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return four rows of ordinary activations, [4, size], always the same."""
    generator = torch.Generator().manual_seed(size)
    return torch.randn(4, size, generator=generator, dtype=torch.float32).to(device, dtype)


def rows_of_all_sizes(
    size: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return four rows, [4, size], of which the last has numbers that a clamp would change."""
    largest = 64.0 if dtype != torch.float16 else 8.0  # products of two stay finite
    scales = torch.tensor([1.0, 1.0, largest / 4, largest], device=device).unsqueeze(1)
    return (sample_rows(size, torch.float32, device) * scales).to(dtype)


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest `difference` of two rows."""
    return max(difference(*rows) for rows in zip(one, other, strict=True))


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the Frobenius norm of the difference, relative to `one`; infinite for NaN."""
    if torch.equal(one, other):  # zeros have no relative error
        return 0.0
    norm = float((one.double() - other.double()).norm() / one.double().norm())
    return norm if norm == norm else float("inf")
