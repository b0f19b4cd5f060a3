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
    WEIGHTS,
    Pass,
)

CLOCK = 1.83e9  # Hz, at which the published peaks are reached
MEMORY = 3.35e12  # bytes/s

TILES_OF_ROWS = {96: 96, 128: 128, 192: 96, 256: 128, 2048: 128, 8192: 128}
"""Rows of the products that are predicted, and those of their tiles."""

RIVALS = {"cuBLAS": 750e12, "FlashAttention-3": 610e12}
"""FLOP/s in bfloat16: large products on an H100; causal, head size 128, 8,192 tokens (Shah et al.
2024, "FlashAttention-3", figure 5)."""


def seconds(cycles: float, passes: float) -> float:
    """Return what passes take that all multiprocessors share."""
    return cycles * passes / (MULTIPROCESSORS * CLOCK)


@dataclass(frozen=True)
class Prediction:
    """A shape, and what it takes.

    Attributes:
        what: of the layer.
        kernel: its key in `KERNELS`.
        passes: of blocks of threads.
        memory: bytes that have to be read.
        rival: seconds.
        longest: the share of its passes that are the longest ones, if that is another one.
    """

    what: str
    kernel: str
    passes: float
    memory: float
    rival: float
    longest: float | None = None

    def ratios(self, one: Pass) -> tuple[float, ...]:
        """Return the times beside the rival's: all units together, as expected, and apart."""
        if self.longest is not None:
            one = one.with_longest(self.longest)
        reading = self.memory / MEMORY
        cycles = (one.together(), one.expected(), one.apart())
        return tuple(max(reading, seconds(count, self.passes)) / self.rival for count in cycles)


def parts_of_rows(rows: int) -> list[int]:
    """Return how many rows are multiplied at once, as csrc/cuda/product/product.cuh does."""
    parts = -(-rows // 1536)
    most = rows if parts == 1 else -(-rows // parts // 256) * 256
    return [min(most, rows - first) for first in range(0, rows, most)]


def passes_of_product(rows: int, tile: int) -> float:
    """Return the blocks of 256 channels of all tiles; the last round counts as a whole one."""
    found = 0.0
    for inputs, outputs in MATRICES:
        tiles = -(-rows // tile) * -(-outputs // 128)
        splits = choose_splits(tiles)
        rounds = -(-tiles * splits // MULTIPROCESSORS)
        found += rounds * MULTIPROCESSORS * inputs / CHANNELS_OF_BLOCK / splits
    return found


def choose_splits(tiles: int) -> int:
    """Return what csrc/cuda/product/product.cuh does, of eight segments."""
    splits = 1
    for more in (2, 4, 8):
        rounds, rounds_of_more = (-(-tiles * n // MULTIPROCESSORS) / n for n in (splits, more))
        if rounds_of_more < rounds * (7 / 8) ** math.log2(more / splits):
            splits = more
    return splits


def predictions() -> list[Prediction]:
    """Return the shapes of the table, each with its rival's time."""
    found = [
        Prediction(
            f"{what}, {n:,} tokens / FlashAttention-3",
            kernel,
            HEADS * n / rows * (n / 64 / 2 + 1 / 2),
            0,
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
            blocks,
            blocks * BLOCK_BYTES,
            blocks * BLOCK_BYTES / MEMORY,
        )
    )
    found += [
        Prediction(
            f"a layer's products, {rows:,} rows / cuBLAS",
            f"{tile} rows",
            sum(passes_of_product(count, tile) for count in parts_of_rows(rows)),
            2 * WEIGHTS,
            max(2 * rows * WEIGHTS / RIVALS["cuBLAS"], 2 * WEIGHTS / MEMORY),
        )
        for rows, tile in TILES_OF_ROWS.items()
    ]
    reading = 2 * WEIGHTS / MEMORY
    one = Prediction(
        "a layer's products, 1 row / cuBLAS", "one", WEIGHTS / (64 * 128), 2 * WEIGHTS, reading
    )
    return [*found, one]
