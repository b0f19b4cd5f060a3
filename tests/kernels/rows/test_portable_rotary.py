"""Rotary embeddings: tables against float64, rotation against the reference, errors."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import portable_reference as reference
from tests.kernels.portable_cases import DTYPES, as_floats, assert_same, numbers, rounded
from vllm.fork_kernels.portable.rotary import portable_rotate, rotary_frequencies, rotary_table

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(("size", "base"), [(2, 1.0), (64, 10000.0), (128, 5e5), (80, 1e6 + 0.5)])
def test_frequencies(size: int, base: float) -> None:
    actual = rotary_frequencies(size, base)
    assert_same(actual, torch.from_numpy(reference.rotary_frequencies(size, base)))
    exact = base ** -(torch.arange(0, size, 2).double() / size)
    assert torch.equal(actual, exact.float())


@pytest.mark.parametrize("scale", [1.0, 1.2079441541679836])
def test_table(scale: float) -> None:
    frequencies = rotary_frequencies(128, 5e5)
    expected = reference.rotary_table(frequencies.numpy(), 700, scale)
    assert_same(rotary_table(frequencies, 700, scale), torch.from_numpy(expected))


def test_table_is_the_nearest_to_the_exact_one() -> None:
    """Up to position 2^20, where argument reduction has most to do."""
    frequencies = torch.tensor([1.0, 0.7320508, 1.9999999, 3.0e-6])
    table = rotary_table(frequencies, 2**20)
    angles = torch.arange(2**20).double()[:, None] * frequencies.double()
    exact = torch.cat([angles.cos(), angles.sin()], dim=1)
    differ = table != exact.float()  # PyTorch's own last bit may be wrong, too
    assert differ.float().mean() < 1e-6
    assert ((table.double() - exact).abs() <= 2.0**-25).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("size", "rotated"), [(64, 64), (80, 32), (128, 128), (96, 50)])
def test_rotation(dtype: torch.dtype, is_interleaved: bool, size: int, rotated: int) -> None:
    table = rotary_table(rotary_frequencies(rotated, 10000.0), 100)
    positions = torch.tensor([0, 99, 7, 7, 50])
    whole = numbers(5, 3 * size + 40, seed=1, dtype=dtype, scale=4.0)
    x = whole[:, 24 : 24 + 3 * size].unflatten(1, (3, size))  # as a part of a projection
    before = whole.clone()
    expected = np.stack(
        [
            [
                reference.rotate(head, table[position].numpy(), is_interleaved=is_interleaved)
                for head in row
            ]
            for row, position in zip(as_floats(x), positions.tolist(), strict=True)
        ]
    )
    portable_rotate(x, positions, table, is_interleaved=is_interleaved)
    assert_same(x.contiguous(), rounded(expected, dtype))
    assert_same(whole[:, :24], before[:, :24])
    assert_same(whole[:, 24 + 3 * size :], before[:, 24 + 3 * size :])


def arguments() -> dict[str, Any]:
    return {
        "x": torch.ones(2, 3, 8),
        "positions": torch.tensor([0, 4]),
        "table": torch.zeros(5, 8),
    }


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"x": torch.ones(2, 3, 8).int()}, "x must have dtype float32, bfloat16 or float16, but"),
        ({"x": torch.ones(2, 24)}, r"x must have 3 dimension\(s\), but has 2."),
        ({"x": torch.ones(2, 8, 3).mT}, "the last dimension of x must be contiguous."),
        ({"positions": torch.tensor([0])}, "positions must have one entry for each of the 2 rows"),
        ({"positions": torch.zeros(2).int()}, "positions must have dtype int64, but has int32."),
        ({"positions": torch.tensor([0, 5])}, r"positions\[1\] is 5, but table has 5 rows."),
        ({"positions": torch.tensor([-1, 0])}, r"positions\[0\] is -1, but table has 5 rows."),
        ({"table": torch.zeros(5, 8).half()}, "table must have dtype float32, but has float16."),
        ({"table": torch.zeros(5, 10)}, "table must have an even number of columns, at most the 8"),
        ({"table": torch.zeros(5, 7)}, "table must have an even number of columns, at most the 8"),
    ],
)
def test_argument_errors(wrong: dict[str, Any], sentence: str) -> None:
    given = arguments() | wrong
    with pytest.raises(RuntimeError, match=f"^portable_rotate: {sentence}"):
        portable_rotate(**given)
    assert given["x"].eq(1).all()


def test_errors_of_tables() -> None:
    with pytest.raises(RuntimeError, match=r"size must be even and at least 2, but is 7."):
        rotary_frequencies(7, 10000.0)
    with pytest.raises(RuntimeError, match=r"base must be in 1..2\^60, but is 0.5."):
        rotary_frequencies(8, 0.5)
    with pytest.raises(RuntimeError, match=r"frequencies\[1\] must not be negative, and its angl"):
        rotary_table(torch.tensor([1.0, 4.0]), 2**20)
    with pytest.raises(RuntimeError, match=r"frequencies\[0\] must not be negative, and its angl"):
        rotary_table(torch.tensor([torch.nan]), 2)
    with pytest.raises(RuntimeError, match=r"positions must be at least 1, but is 0."):
        rotary_table(torch.tensor([1.0]), 0)
