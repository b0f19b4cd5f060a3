"""RMSNorm and LayerNorm: the bits of the reference, fused residuals, errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import portable_reference as reference
from tests.kernels.portable_cases import DTYPES, as_floats, assert_same, numbers, rounded
from vllm.fork_kernels.portable.norm import portable_layer_norm, portable_rms_norm

SIZES = (1, 64, 255, 256, 257, 1000, 4096)
ROWS = 3


def expected_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
    offset: float,
    *,
    is_centred: bool,
) -> torch.Tensor:
    parameters = [None if p is None else as_floats(p) for p in (weight, bias)]
    with np.errstate(all="ignore"):
        rows = [
            reference.norm(
                row, parameters[0], parameters[1], epsilon, offset, is_centred=is_centred
            )
            for row in as_floats(x)
        ]
    return rounded(np.stack(rows), x.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(size: int, dtype: torch.dtype, offset: float) -> None:
    x = numbers(ROWS, size, seed=1, dtype=dtype, scale=4.0)
    weight = numbers(size, seed=2, dtype=dtype, scale=2.0)
    actual = portable_rms_norm(x, weight, 1e-6, weight_offset=offset)
    assert_same(actual, expected_norm(x, weight, None, 1e-6, offset, is_centred=False))
    without = portable_rms_norm(x, None, 1e-5)
    assert_same(without, expected_norm(x, None, None, 1e-5, 0.0, is_centred=False))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_layer_norm(size: int, dtype: torch.dtype) -> None:
    x = numbers(ROWS, size, seed=3, dtype=dtype, scale=4.0)
    weight = numbers(size, seed=4, scale=2.0)
    bias = numbers(size, seed=5, dtype=dtype, scale=2.0)
    actual = portable_layer_norm(x, weight, bias)
    assert_same(actual, expected_norm(x, weight, bias, 1e-5, 0.0, is_centred=True))
    without = portable_layer_norm(x, weight)
    assert_same(without, expected_norm(x, weight, None, 1e-5, 0.0, is_centred=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [portable_rms_norm, portable_layer_norm])
def test_a_residual_is_an_addition_before(norm: Callable[..., Any], dtype: torch.dtype) -> None:
    x, residual = (numbers(2, 5, 300, seed=s, dtype=dtype, scale=4.0) for s in (6, 7))
    weight = numbers(300, seed=8)
    total = x + residual
    actual = norm(x, weight, residual=residual)
    assert_same(residual, total)
    assert_same(actual, norm(total, weight))


def test_a_row_does_not_depend_on_the_others() -> None:
    x = numbers(64, 1024, seed=9, dtype=torch.bfloat16)
    together = portable_rms_norm(x)
    assert_same(torch.cat([portable_rms_norm(row[None].clone()) for row in x]), together)


@pytest.mark.parametrize("norm", [portable_rms_norm, portable_layer_norm])
def test_what_is_not_finite(norm: Callable[..., Any]) -> None:
    x = numbers(3, 300, seed=10)
    x[1, 7] = torch.nan
    actual = norm(x)
    assert actual[1].isnan().all()
    assert actual[[0, 2]].isfinite().all()
    assert norm(torch.zeros(1, 0x40)).eq(0).all()


def test_accuracy() -> None:
    x, weight = numbers(16, 4096, seed=11, scale=4.0), numbers(4096, seed=12)
    functional = torch.nn.functional
    exact = functional.rms_norm(x.double(), (4096,), weight.double(), 1e-6)
    error = (portable_rms_norm(x, weight).double() - exact).abs() / exact.abs()
    assert error.max() < 1e-6
    exact = functional.layer_norm(x.double(), (4096,), weight.double(), weight.double())
    error = (portable_layer_norm(x, weight, weight).double() - exact).abs()
    assert error.max() < 2e-6


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"x": torch.zeros(2, 4).double()}, "x must have dtype float32, bfloat16 or float16, but"),
        ({"x": torch.zeros(4, 2).t()}, "x must be contiguous."),
        ({"x": torch.zeros(2, 0)}, "x must have at least one column."),
        ({"weight": torch.zeros(3)}, "weight must have one entry for each of the 4 columns of x"),
        ({"weight": torch.zeros(4).int()}, "weight must have dtype float32, bfloat16 or float16"),
        ({"weight": None, "bias": torch.zeros(4)}, "bias needs a weight."),
        ({"bias": torch.zeros(2, 2)}, r"bias must have 1 dimension\(s\), but has 2."),
        ({"epsilon": -1.0}, "epsilon must not be negative, but is -1."),
        ({"residual": torch.zeros(2, 4).half()}, "residual must have dtype float32, but has float"),
        ({"residual": torch.zeros(1, 4)}, "residual must have the shape of x."),
    ],
)
def test_argument_errors(arguments: dict[str, Any], sentence: str) -> None:
    given = {"x": torch.zeros(2, 4), "weight": torch.zeros(4)} | arguments
    with pytest.raises(RuntimeError, match=f"^portable_norm: {sentence}"):
        portable_layer_norm(**given)
