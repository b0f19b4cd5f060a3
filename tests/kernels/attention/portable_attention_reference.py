"""docs/numerics/attention.md in NumPy: slow, plain, and written from that document alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.kernels.portable_reference import (
    Floats,
    bits_of,
    exp2_of_fraction,
    fma,
    limited,
    pow2,
    tanh,
)

BLOCK, SUPERBLOCK = 64, 1024
NOTHING = -(2**28)
INVALID = 255
LOG2_E = np.float32(float.fromhex("0x1.715476p+0"))

Integers = NDArray[np.int64]


@dataclass
class Rows:
    """Rows of numbers as integers and scales."""

    integers: Integers  # [n, size]
    scales: Integers  # [n]

    @property
    def lower(self) -> Integers:
        return (self.integers + 128) % 256 - 128

    @property
    def upper(self) -> Integers:
        return (self.integers - self.lower) // 256


def quantised(x: Floats) -> Rows:
    """Of rows [n, size]."""
    largest = bits_of(np.abs(x)).max(axis=1).astype(np.int64)
    scales = np.maximum(((largest + 0x20000) >> 23) - 14, 64)
    scales = np.where(largest >= 0x7F800000, INVALID, scales)
    valid = np.where(scales == INVALID, 127, scales)
    with np.errstate(invalid="ignore"):
        integers = np.rint(x.astype(np.float64) * np.ldexp(1.0, 127 - valid)[:, None])
    integers[scales == INVALID] = 0
    return Rows(integers.astype(np.int64), scales)


@dataclass
class Gathered:
    """values and sum, both in units of 2^exponent."""

    exponent: int
    sum: np.float32
    values: Floats

    def merge(
        self, exponent: int, addend: np.float32, values: Floats, units: tuple[int, int]
    ) -> None:
        """Add a sum and values in units of 2^units; the exponent is of what is merged."""
        new = max(self.exponent, exponent)
        kept = pow2(np.array(self.exponent - new))
        self.sum = np.float32(self.sum * kept + addend * pow2(np.array(units[0] - new)))
        self.values = self.values * kept + values * pow2(np.array(units[1] - new))
        self.exponent = new


def nothing(size: int) -> Gathered:
    return Gathered(NOTHING, np.float32(0), np.zeros(size, dtype=np.float32))


@dataclass
class Head:
    """What does not depend on the query: a head's keys and values, and how it scores."""

    keys: Rows
    values: Rows
    scale: float
    window: int = 0
    soft_cap: float = 0.0
    slope: float = 0.0
    sink: float | None = None

    def scores(self, integers: Integers, query_scale: int, seen: Integers, at: int) -> Floats:
        """The exponents, base 2, of the weights of the tokens `seen` by a query."""
        upper = (self.keys.upper[seen] @ integers).astype(np.float32)
        lower = (self.keys.lower[seen] @ integers).astype(np.float32)
        products = fma(upper, np.float32(256), lower)
        scale, cap = np.float32(self.scale), np.float32(self.soft_cap)
        factor = scale / cap if self.soft_cap else scale * LOG2_E
        x = products * pow2(self.keys.scales[seen] - 127)
        x = x * (factor * pow2(np.array(query_scale - 127)))
        if self.soft_cap:
            x = tanh(x) * (cap * LOG2_E)
        if self.slope:
            x = fma(np.float32(self.slope) * LOG2_E, (seen - at).astype(np.float32), x)
        return limited(x, -(2.0**20), 2.0**20)

    def attend(self, query: Floats, at: int) -> Floats:
        """The result [size] for one query at a position."""
        row = quantised(query[None])
        first = max(0, at - self.window + 1) if self.window else 0
        seen = np.arange(first, at + 1)
        scales = [row.scales, self.keys.scales[seen], self.values.scales[seen]]
        if any((s == INVALID).any() for s in scales):
            return np.full_like(query, np.nan)
        total = nothing(len(query))
        for superblock in np.split(seen, _borders(seen, SUPERBLOCK)):
            part = nothing(len(query))
            for block in np.split(superblock, _borders(superblock, BLOCK)):
                self._add_block(part, row, block, at)
            total.merge(part.exponent, part.sum, part.values, (part.exponent, part.exponent))
        if self.sink is not None:
            if not np.isfinite(self.sink):
                return np.full_like(query, np.nan)
            self._add_sink(total, self.sink)
        return total.values / total.sum

    def _add_block(self, part: Gathered, row: Rows, seen: Integers, at: int) -> None:
        n, w = _weights(self.scores(row.integers[0], int(row.scales[0]), seen, at))
        weighted = n + self.values.scales[seen]
        largest, largest_weighted = int(n.max()), int(weighted.max())
        sum_of_weights = np.rint(w * pow2(n - largest + 21)).astype(np.int64).sum()
        integers = np.rint(w * pow2(weighted - largest_weighted + 14)).astype(np.int64)
        upper = (integers @ self.values.upper[seen]).astype(np.float32)
        lower = (integers @ self.values.lower[seen]).astype(np.float32)
        values = fma(upper, np.float32(256), lower)
        units = (largest - 21, largest_weighted - 141)
        part.merge(largest, np.float32(sum_of_weights), values, units)

    def _add_sink(self, total: Gathered, sink: float) -> None:
        x = limited(np.array([np.float32(sink) * LOG2_E]), -(2.0**20), 2.0**20)
        n, w = _weights(x)
        exponent = int(n[0])
        total.merge(exponent, w[0], np.zeros_like(total.values), (exponent, exponent))


def _weights(x: Floats) -> tuple[Integers, Floats]:
    n = np.rint(x)
    return n.astype(np.int64), exp2_of_fraction(x - n)


def _borders(tokens: Integers, size: int) -> Integers:
    """Where among ascending tokens a multiple of `size` begins, but for the first of them."""
    return np.flatnonzero(tokens[1:] // size != tokens[:-1] // size) + 1
