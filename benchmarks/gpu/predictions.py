"""What the CUDA kernels should take on an H100 for Llama-3.1-8B's shapes, beside their rivals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.gpu.passes import (
    BLOCK_BYTES,
    CHANNELS_OF_BLOCK,
    HEAD_SIZE,
    HEADS,
    KEY_HEADS,
    MATRICES,
    MULTIPROCESSORS,
    SECOND_CACHE,
    Pass,
)

CLOCK = 1.83e9  # Hz, at which the published peaks are reached
MEMORY = 3.35e12  # bytes/s

LAUNCH = 1.5e-6
"""Seconds from the end of a kernel to the work of the next one in a CUDA graph: an assumption, for
both sides. That kernels begin early is not counted."""

TILES_OF_ROWS = {
    1: 8,
    8: 8,
    16: 16,
    64: 64,
    96: 96,
    128: 128,
    192: 96,
    256: 128,
    2048: 128,
    8192: 128,
}
"""Rows of the products that are predicted, and those of their tiles."""


@dataclass(frozen=True)
class ProductTile:
    """A tile of a product.

    Attributes:
        outputs: that it has.
        channels: of a pass.
        resident: blocks of threads that a multiprocessor has at once.
    """

    outputs: int
    channels: int
    resident: int


TILES = {
    8: ProductTile(64, 128, 4),
    16: ProductTile(64, 128, 3),
    **dict.fromkeys((64, 96, 128), ProductTile(128, CHANNELS_OF_BLOCK, 1)),
}
"""By their rows."""

RIVALS = {"cuBLAS": 750e12, "FlashAttention-3": 610e12}
"""FLOP/s in bfloat16: large products on an H100; causal, head size 128, 8,192 tokens (Shah et al.
2024, "FlashAttention-3", figure 5)."""


def seconds(cycles: float, passes: float) -> float:
    """Return what passes take that all multiprocessors share."""
    return cycles * passes / (MULTIPROCESSORS * CLOCK)


@dataclass(frozen=True)
class Share:
    """What kernels do one after the other.

    Attributes:
        passes: of blocks of threads.
        memory: bytes that have to be read.
        others: seconds of what is done besides.
    """

    passes: float
    memory: float
    others: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """A shape, and what it takes.

    Attributes:
        what: of the layer.
        kernel: its key in `KERNELS`.
        shares: of the work.
        rival: seconds.
        longest: the share of its passes that are the longest ones, if that is another one.
    """

    what: str
    kernel: str
    shares: tuple[Share, ...]
    rival: float
    longest: float | None = None

    def ratios(self, one: Pass) -> tuple[float, ...]:
        """Return the times beside the rival's: all units together, as expected, and apart."""
        if self.longest is not None:
            one = one.with_longest(self.longest)
        cycles = (one.together(), one.expected(), one.apart())
        return tuple(sum(self._seconds(count)) / self.rival for count in cycles)

    def _seconds(self, cycles: float) -> list[float]:
        """Return what each share takes: reading memory goes on meanwhile."""
        return [
            max(share.memory / MEMORY, seconds(cycles, share.passes)) + share.others
            for share in self.shares
        ]


def parts_of_rows(rows: int) -> list[int]:
    """Return how many rows are multiplied at once, as csrc/cuda/product/product.cuh does."""
    parts = -(-rows // 1536)
    most = rows if parts == 1 else -(-rows // parts // 256) * 256
    return [min(most, rows - first) for first in range(0, rows, most)]


def choose_splits(tiles: int, at_once: int = MULTIPROCESSORS) -> int:
    """Return what csrc/cuda/product/product.cuh does, of eight segments."""
    splits = 1
    for more in (2, 4, 8):
        rounds, rounds_of_more = (-(-tiles * n // at_once) / n for n in (splits, more))
        if rounds_of_more < rounds * (7 / 8) ** math.log2(more / splits):
            splits = more
    return splits


def share_of_product(rows: int, inputs: int, outputs: int, rows_of_tile: int) -> Share:
    """Return one product of rows that are multiplied at once.

    The last round of tiles counts as a whole one. Digits are made by a kernel of their own, and
    partial sums are written and read.
    """
    tile = TILES[rows_of_tile]
    at_once = MULTIPROCESSORS * tile.resident
    tiles = -(-rows // rows_of_tile) * -(-outputs // tile.outputs)
    splits = choose_splits(tiles, at_once)
    rounds = -(-tiles * splits // at_once)
    partials = 2 * 4 * splits * rows * outputs if splits > 1 else 0
    digits = (2 + 2) * rows * inputs
    others = 2 * LAUNCH + digits / MEMORY + partials / (SECOND_CACHE * MULTIPROCESSORS * CLOCK)
    return Share(rounds * at_once * inputs / tile.channels / splits, 2 * inputs * outputs, others)


def products(rows: int, tile: int) -> Prediction:
    """Return a layer's products, beside those of cuBLAS, which have launches as well."""
    shares = [
        share_of_product(count, inputs, outputs, tile)
        for inputs, outputs in MATRICES
        for count in parts_of_rows(rows)
    ]
    rivals = [
        max(2 * rows * inputs * outputs / RIVALS["cuBLAS"], 2 * inputs * outputs / MEMORY) + LAUNCH
        for inputs, outputs in MATRICES
    ]
    what = f"a layer's products, {rows:,} row{'s' if rows > 1 else ''} / cuBLAS"
    return Prediction(what, f"{tile} rows", tuple(shares), sum(rivals))


def predictions() -> list[Prediction]:
    """Return the shapes of the table, each with its rival's time."""
    found = [
        Prediction(
            f"{what}, {n:,} tokens / FlashAttention-3",
            kernel,
            (Share(HEADS * n / rows * (n / 64 / 2 + 1 / 2), 0),),
            4 * n * n * HEAD_SIZE * HEADS / 2 / RIVALS["FlashAttention-3"],
            longest=1 / (n / 64 / 2 + 1 / 2) if kernel == "prompt" else 0.0,
        )
        for what, kernel, rows in (
            ("attention in prompts", "prompt", 128),
            ("attention, the simple way", "simple", 16),
        )
        for n in (2048, 8192)
    ]
    blocks = 32 * KEY_HEADS * -(-4000 // 64)
    found.append(
        Prediction(
            "attention in decoding, 32 x 4,000 tokens / reading the cache",
            "decode",
            (Share(blocks, blocks * BLOCK_BYTES),),
            blocks * BLOCK_BYTES / MEMORY,
        )
    )
    return [*found, *(products(rows, tile) for rows, tile in TILES_OF_ROWS.items())]
