"""Numbers that are hard to compute with, and models without an engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.loaded_models import load_model

__all__ = ["load_model"]


@pytest.fixture
def adversarial() -> Callable[[tuple[int, ...], torch.dtype], torch.Tensor]:
    """Makes random tensors with denormal, huge, zero and equal elements among the usual ones."""

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        x = torch.randn(shape, generator=generator)
        x *= torch.exp2(torch.randint(-12, 8, (shape[0], *[1] * (len(shape) - 1)),
                                      generator=generator))  # fmt: skip
        flat = x.view(-1)
        flat[::97] = torch.finfo(dtype).smallest_normal / 4
        flat[1::101] = 200.0
        flat[2::103] = 0.0
        flat[3::107] = -0.0
        x[-1] = 1.0
        return x.to(dtype)

    return make
