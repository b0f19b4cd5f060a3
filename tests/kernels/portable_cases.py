"""Inputs that are the same on every machine, made of integers, and comparison bit by bit."""

import numpy as np
import torch
from numpy.typing import NDArray

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def integers(count: int, seed: int) -> NDArray[np.uint32]:
    """Well mixed 32-bit integers (the finaliser of MurmurHash3)."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(0x9E3779B1 * (seed + 1))
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        x = ((x ^ (x >> np.uint64(16))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return (x ^ (x >> np.uint64(16))).astype(np.uint32)


def numbers(
    *shape: int, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> torch.Tensor:
    """Numbers in -scale..scale, most of them much smaller; scale is a power of two."""
    bits = integers(int(np.prod(shape)), seed)
    fractions = ((bits >> np.uint32(8)).astype(np.float64) - 2.0**23) * 2.0**-23
    spread = (fractions * 2.0 ** -(bits & np.uint32(3)).astype(np.float64) * scale).reshape(shape)
    if dtype == torch.float16:  # torch's conversion depends on whether subnormals are flushed
        return torch.from_numpy(spread.astype(np.float16))
    return torch.from_numpy(spread.astype(np.float32)).to(dtype)


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 of a 16-bit format, or as many bit patterns of float32 with the extreme ones."""
    if dtype == torch.float32:
        ends = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)
        mixed = integers(2**17, seed=5)
        ordinary = numbers(2**17, seed=6, scale=32.0).numpy().view(np.uint32)
        bits = np.concatenate([ends, ends | np.uint32(1 << 31), mixed, ordinary])
        return torch.from_numpy(bits.view(np.float32))
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(BITS[x.dtype]) if x.dtype in BITS else x


def as_floats(x: torch.Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(x.float().numpy())


def rounded(x: NDArray[np.float32], dtype: torch.dtype) -> torch.Tensor:
    """float32 in another format, every NaN having the bits that are specified."""
    result = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    return torch.where(result.isnan(), torch.full_like(result, torch.nan), result)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in shape, dtype and every bit, those of NaN included."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    differ = bits(actual) != bits(expected)
    assert not differ.any(), (
        f"{int(differ.sum())} of {differ.numel()} differ, the first: "
        f"{actual[differ][0].item()!r} for {expected[differ][0].item()!r}"
    )
