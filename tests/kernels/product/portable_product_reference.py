"""The product of docs/numerics/products.md in plain NumPy, written from that page and nothing else.

Numbers come and go as float32 arrays; those of float16 and bfloat16 are exact in it. Section
numbers are the page's.
"""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

BLOCK = 256


def blocks_of(in_features: int, segments: int) -> list[list[slice]]:
    """The blocks of each segment (section 2)."""
    length = in_features // segments
    return [
        [
            slice(first, min(first + BLOCK, (s + 1) * length))
            for first in range(s * length, (s + 1) * length, BLOCK)
        ]
        for s in range(segments)
    ]


def statistics_of(weight: Floats) -> Integers:
    """What the numbers of each column count (section 3)."""
    field = (weight.view(np.uint32).astype(np.int64) >> 23) & 255
    counts = np.where(field < 107, 0, 4 ** np.maximum(np.minimum(field, 129) - 107, 0))
    return np.sum(counts, axis=0)


def exponents_of(statistics: Integers) -> Integers:
    """The exponents d of the channels (section 3)."""
    present = sorted(int(s) for s in statistics if s > 0)
    exponents = np.zeros(len(statistics), dtype=np.int64)
    if not present:
        return exponents
    median = present[(len(present) - 1) // 2]
    for k, statistic in enumerate(map(int, statistics)):
        if statistic == 0:
            continue
        fitting = (d for d in range(-16, 17) if 2 * statistic * 4 ** (d + 16) >= median * 4**16)
        exponents[k] = next(fitting, 16)
    return exponents


def exponent_of(magnitude: float, limit: int) -> int:
    """The exponent of a block by its largest magnitude, which is finite (section 4)."""
    exponent = limit
    while not 32512 * 2.0**exponent > magnitude:
        exponent += 1
    return exponent


def split(
    values: npt.NDArray[np.float64], limit: int, *, break_ties: bool
) -> tuple[Integers, Integers, int]:
    """The high digits, low digits and exponent of a block (section 4)."""
    exponent = exponent_of(float(np.max(np.abs(values))), limit)
    integers = np.rint(values * 2.0**-exponent).astype(np.int64)
    if break_ties:
        integers -= integers % 512 == 128
    low = (integers + 128) % 256 - 128
    return (integers - low) // 256, low, exponent


def is_out_of_range(values: npt.NDArray[np.float64], greatest: int) -> bool:
    """Whether a block has a NaN, an infinity or an exponent above the greatest (section 4)."""
    return not bool(np.max(np.abs(values)) < 32512 * 2.0**greatest)


def term_of(h: int, m: int, exponent: int) -> np.float32:
    """A block's term (section 5)."""
    assert -(2**30) < 256 * h + m < 2**30
    return np.ldexp(np.float32(256 * h + m), np.int32(8 + exponent))


def halves(sums: list[np.float32]) -> np.float32:
    """The sum by a tree of halves (section 6)."""
    if len(sums) == 1:
        return sums[0]
    middle = len(sums) // 2
    return halves(sums[:middle]) + halves(sums[middle:])


def sums_of(x: Floats, weight: Floats, exponents: Integers, segments: int) -> Floats:
    """The sums of all segments, float32 [rows, out_features], before bias and rounding."""
    with np.errstate(over="ignore"):
        rows = x.astype(np.float64) * 2.0**-exponents
    weights = weight.astype(np.float64) * 2.0**exponents
    layout = blocks_of(x.shape[1], segments)
    result = np.empty((len(x), len(weight)), dtype=np.float32)
    packed = [
        [[split(row[part], -54, break_ties=False) for part in parts] for parts in layout]
        for row in weights
    ]
    for i, row in enumerate(rows):
        if any(is_out_of_range(row[part], 50) for parts in layout for part in parts):
            result[i] = np.nan
            continue
        digits = [[split(row[part], -80, break_ties=True) for part in parts] for parts in layout]
        for n in range(len(weight)):
            result[i, n] = halves([_segment(*pair) for pair in zip(digits, packed[n], strict=True)])
    return result


def _segment(
    row: list[tuple[Integers, Integers, int]], weight: list[tuple[Integers, Integers, int]]
) -> np.float32:
    total = np.float32(0.0)
    for (high, low, e), (w_high, w_low, w_e) in zip(row, weight, strict=True):
        h = int(np.dot(high, w_high))
        m = int(np.dot(high, w_low) + np.dot(low, w_high))
        total = total + term_of(h, m, e + w_e)
    return total


def with_bias(sums: Floats, bias: Floats | None) -> Floats:
    """Section 6, step 3."""
    if bias is None:
        return sums
    return sums + np.where(np.abs(bias) < np.float32(2.0**-103), np.float32(0.0), bias)


def rounded_bits(sums: Floats, dtype: str) -> npt.NDArray[np.uint32] | npt.NDArray[np.uint16]:
    """The bits of the results as float32, float16 or bfloat16 (section 6, step 4)."""
    is_nan = np.isnan(sums)
    bits = sums.view(np.uint32)
    if dtype == "float32":
        return np.where(is_nan, np.uint32(0x7FC00000), bits)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            half = sums.astype(np.float16).view(np.uint16)
        return np.where(is_nan, np.uint16(0x7E00), half)
    even = bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)
    return np.where(is_nan, np.uint16(0x7FC0), (even >> 16).astype(np.uint16))


def product_bits(
    x: Floats, weight: Floats, exponents: Integers, bias: Floats | None, dtype: str
) -> npt.NDArray[np.uint32] | npt.NDArray[np.uint16]:
    """The bits of ``x W^T + b``."""
    segments = math.gcd(x.shape[1], 8)
    return rounded_bits(with_bias(sums_of(x, weight, exponents, segments), bias), dtype)
