"""CUDA kernels on rows, emulated on the CPU: the bits of the CPU's ops."""

from typing import Any

import pytest
import torch

from tests.kernels import emulated_ops as emulated
from tests.kernels.portable_cases import DTYPES, assert_same, every_number, numbers

OPS = torch.ops.vllm_fork


@pytest.mark.some(18)
@pytest.mark.parametrize("function", emulated.FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_map(dtype: torch.dtype, function: str) -> None:
    """Every 16-bit number, and a sample of float32 with its extremes."""
    x = every_number(dtype)
    assert_same(emulated.portable_map(x, function), OPS.portable_map(x, function))


@pytest.mark.parametrize("shape", [(0,), (1,), (1023,), (3, 5, 7)], ids=str)
def test_map_of_shapes(shape: tuple[int, ...]) -> None:
    x = numbers(*shape, seed=1)
    assert_same(emulated.portable_map(x, "silu"), OPS.portable_map(x, "silu"))


@pytest.mark.parametrize("function", ["silu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated(dtype: torch.dtype, function: str) -> None:
    for shape in ((1, 2), (3, 2 * 1024), (2, 3, 2 * 1500), (5, 14)):
        x = numbers(*shape, seed=2, dtype=dtype, scale=16.0)
        x[0, ..., 0], x[0, ..., -1] = torch.inf, torch.nan
        assert_same(emulated.portable_gated(x, function), OPS.portable_gated(x, function))


@pytest.mark.some(24)
@pytest.mark.parametrize("size", [1, 31, 64, 128, 255, 256, 257, 1000, 4096])
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm(dtype: torch.dtype, is_centred: bool, size: int) -> None:
    x = numbers(3, size, seed=3, dtype=dtype, scale=8.0)
    x[1] *= 0
    x[2, size // 2] = torch.inf
    weight, bias = numbers(size, seed=4, dtype=dtype), numbers(size, seed=5)
    for parameters in ((None, None), (weight, None), (weight.float(), bias)):
        arguments: tuple[Any, ...] = (*parameters, 1e-5, 1.0 if size % 2 else 0.0, is_centred)
        assert_same(
            emulated.portable_norm(x, None, *arguments), OPS.portable_norm(x, None, *arguments)
        )


@pytest.mark.parametrize("size", [100, 700])
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm_with_a_residual(dtype: torch.dtype, is_centred: bool, size: int) -> None:
    x, residual = (numbers(9, size, seed=seed, dtype=dtype) for seed in (6, 7))
    residual[1, 5] = torch.nan
    weight = numbers(size, seed=8)
    for seed in range(1, 4):
        own, expected_residual = residual.clone(), residual.clone()
        arguments = (weight, None, 1e-6, 0.0, is_centred)
        expected = OPS.portable_norm(x, expected_residual, *arguments)
        assert_same(emulated.portable_norm(x, own, *arguments, seed=seed), expected)
        assert_same(own, expected_residual)


@pytest.mark.parametrize("scale", [1.0, 1.1707])
def test_rotary_table(scale: float) -> None:
    frequencies = OPS.portable_rotary_frequencies(94, 10000.0)
    for positions in (1, 2000):
        assert_same(
            emulated.portable_rotary_table(frequencies, positions, scale),
            OPS.portable_rotary_table(frequencies, positions, scale),
        )


def test_frequencies_that_a_table_cannot_have_are_nan() -> None:
    """Where the CPU refuses: a GPU's values cannot be looked at without waiting for it."""
    frequencies = torch.tensor([1.0, -1.0, torch.nan, 2.0**20, 2.0**20 + 1])
    table = emulated.portable_rotary_table(frequencies, 3, 1.0)
    expected = torch.tensor([False, True, True, False, True]).repeat(2).expand(3, -1)
    assert (table.isnan() == expected).all()


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rotate(dtype: torch.dtype, is_interleaved: bool) -> None:
    """Also where the heads lie within a larger row, and are not rotated as a whole."""
    for heads, size, rotated in ((1, 2, 2), (3, 64, 64), (5, 96, 40)):
        table = OPS.portable_rotary_table(
            OPS.portable_rotary_frequencies(rotated, 10000.0), 50, 1.0
        )
        positions = torch.tensor([0, 49, 7, 7])
        rows = numbers(4, heads + 2, size + 3, seed=9, dtype=dtype)
        rows[2, 1, 0] = torch.nan
        expected = rows.clone()
        OPS.portable_rotate(expected[:, 1:-1, :size], positions, table, is_interleaved)
        emulated.portable_rotate(rows[:, 1:-1, :size], positions, table, is_interleaved)
        assert_same(rows, expected)


def test_heads_at_a_position_beyond_the_table_are_nan() -> None:
    table = OPS.portable_rotary_table(OPS.portable_rotary_frequencies(8, 100.0), 5, 1.0)
    x = numbers(3, 2, 10, seed=10)
    whole = x.clone()
    emulated.portable_rotate(x, torch.tensor([-1, 4, 5]), table, False)
    assert x[[0, 2], :, :8].isnan().all()
    assert_same(x[:, :, 8:], whole[:, :, 8:])
    assert not x[1].isnan().any()
