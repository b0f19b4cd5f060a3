"""Elementary and activation functions: every input of 16 bits, bits and accuracy."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.kernels import portable_reference as reference
from tests.kernels.portable_cases import (
    DTYPES,
    as_floats,
    assert_same,
    every_number,
    numbers,
    rounded,
)
from vllm.fork_kernels.portable.functions import Function, portable_gated, portable_map

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", Function)
def test_bits_of_the_reference(function: Function, dtype: torch.dtype) -> None:
    x = every_number(dtype)
    with np.errstate(all="ignore"):
        expected = reference.FUNCTIONS[function](as_floats(x))
    assert_same(portable_map(x, function), rounded(expected, dtype))


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Without torch's overflow of 1 + e^-x."""
    return torch.where(x < 0, x.exp(), 1) / (1 + (-x.abs()).exp())


ROOT = math.sqrt(2 / math.pi)
# What each function is, in float64; from where on its error is counted in units of the last place,
# how many of these it may be, and the absolute error below.
ACCURACY: dict[Function, tuple[Callable[[torch.Tensor], torch.Tensor], float, float, float]] = {
    Function.EXP: (torch.exp, -math.inf, 1.0, 0),
    Function.EXP2: (torch.exp2, -math.inf, 1.0, 0),
    Function.LOG: (torch.log, -math.inf, 1.0, 0),
    Function.TANH: (torch.tanh, -math.inf, 1.6, 0),
    Function.ERF: (torch.erf, -math.inf, 1.6, 0),
    Function.SIGMOID: (sigmoid, -math.inf, 2.4, 0),
    Function.SILU: (lambda x: x * sigmoid(x), -60, 3.3, 1e-24),
    Function.QUICK_GELU: (lambda x: x * sigmoid(1.702 * x), -2.5, 5, 2e-8),
    Function.GELU: (lambda x: x / 2 * torch.erfc(-x / math.sqrt(2)), -5, 6, 4e-13),
    Function.GELU_TANH: (
        lambda x: x * sigmoid(2 * ROOT * (x + 0.044715 * x**3)),
        *(-2.5, 12, 2e-8),
    ),
}


@pytest.mark.parametrize("function", ACCURACY)
def test_accuracy(function: Function) -> None:
    exact_function, start, units, absolute = ACCURACY[function]
    x = torch.cat([every_number(dtype).float() for dtype in DTYPES])
    exact = exact_function(x.double())
    actual = portable_map(x, function)
    # Where x * 0 meets an infinity, the limit is not asked for.
    is_finite = exact.float().isfinite() & ~x.isinf()
    assert torch.equal(actual.isfinite()[is_finite], is_finite[is_finite])
    unit = torch.exp2(exact.abs().clamp(min=2.0**-126).log2().floor() - 23)
    error = (actual.double() - exact).abs()
    allowed = torch.where(x >= start, units * unit, absolute)
    assert (error <= allowed)[is_finite].all(), (error / unit)[is_finite & (x >= start)].max()


@pytest.mark.parametrize(
    ("function", "at_minus_infinity", "at_infinity"),
    [
        (Function.EXP, 0.0, math.inf),
        (Function.EXP2, 0.0, math.inf),
        (Function.LOG, math.nan, math.inf),
        (Function.TANH, -1.0, 1.0),
        (Function.ERF, -1.0, 1.0),
        (Function.SIGMOID, 0.0, 1.0),
        (Function.RELU, 0.0, math.inf),
        (Function.SQUARED_RELU, 0.0, math.inf),
        (Function.SILU, math.nan, math.inf),
        (Function.QUICK_GELU, math.nan, math.inf),
        (Function.GELU, math.nan, math.inf),
        (Function.GELU_TANH, math.nan, math.inf),
    ],
)
def test_infinities(function: Function, at_minus_infinity: float, at_infinity: float) -> None:
    actual = portable_map(torch.tensor([-math.inf, math.inf, math.nan]), function)
    expected = [at_minus_infinity, at_infinity, math.nan]
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 17, 1024, 1500])
def test_gated(size: int, dtype: torch.dtype) -> None:
    x = numbers(2, 3, 2 * size, seed=size, dtype=dtype, scale=8.0)
    gate, factor = as_floats(x[..., :size]), as_floats(x[..., size:])
    assert_same(portable_gated(x, Function.SILU), rounded(reference.silu(gate) * factor, dtype))


def test_empty() -> None:
    assert portable_map(torch.zeros(0, 4), Function.EXP).shape == (0, 4)
    assert portable_gated(torch.zeros(0, 4), Function.SILU).shape == (0, 2)
    assert portable_gated(torch.zeros(3, 0), Function.SILU).shape == (3, 0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: portable_map(torch.zeros(2).double(), Function.EXP),
            "portable_map: x must have dtype float32, bfloat16 or float16, but has float64.",
        ),
        (
            lambda: portable_map(torch.zeros(4, 4).t()[:, :2], Function.EXP),
            "portable_map: x must be contiguous.",
        ),
        (
            lambda: torch.ops.vllm_fork.portable_map(torch.zeros(2), "sine"),
            "portable_map: there is no function 'sine'.",
        ),
        (
            lambda: portable_gated(torch.zeros(2, 3), Function.SILU),
            "portable_gated: x must have an even last dimension, a gate and what it is multiplied",
        ),
        (
            lambda: portable_gated(torch.tensor(1.0), Function.SILU),
            "portable_gated: x must have an even last dimension",
        ),
    ],
)
def test_argument_errors(call: Callable[[], torch.Tensor], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{sentence}"):
        call()
