"""Whether a portable module computes what it is to replace: both are asked about a few rows."""

from __future__ import annotations

import torch

TOLERANCE = 0.03
"""Of the relative error: far above the roundings of 16 bits, far below another formula."""


def sample_rows(size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return four rows of ordinary activations, [4, size], always the same."""
    generator = torch.Generator().manual_seed(size)
    return torch.randn(4, size, generator=generator, dtype=torch.float32).to(device, dtype)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the Frobenius norm of the difference, relative to `one`; infinite for NaN."""
    norm = float((one.double() - other.double()).norm() / one.double().norm())
    return norm if norm == norm else float("inf")
