"""What the main loops of the CUDA kernels cost on an H100, by their machine code.

    python -m benchmarks.gpu.counts            prints the table
    python -m benchmarks.gpu.counts --write    and writes it into docs/gpu.md

Each kernel is compiled for sm_90a. Of its main loop the shortest pass that goes through all
products is counted, and the longest one where a share of the passes takes that: at the end of a
block of 256 input channels, or where queries do not see all tokens of a block. Instructions are
weighed with the rates that NVIDIA publishes for compute capability 9.0 (CUDA Programming Guide,
"Throughput of Native Arithmetic Instructions"), a tensor core's with the peak of the H100 (989
TFLOP/s in bfloat16, twice that in int8) and, for mma.sync, with 62 % of it (Luo et al. 2024,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture").

Three times come out: if all units work at once, if tensor cores and all else work by turns, and
what is to be expected between the two where a block of threads has two warpgroups that do not
wait for each other: see `Pass.expected`. Copies run beside all of it. What the rivals take is
published, too: see `RIVALS`. Nothing here is a measurement.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.machine_code import CSRC, Function, Loop, disassembled, value_of
from benchmarks.gpu.table import PAGE, between, markdown

BEGIN, END = "<!-- the counts begin -->", "<!-- the counts end -->"

MULTIPROCESSORS, QUARTERS = 132, 4
CLOCK = 1.83e9  # Hz, at which the published peaks are reached
MEMORY = 3.35e12  # bytes/s
TENSOR_OPERATIONS = 8192  # of int8, of a multiprocessor in a cycle
SECOND_CACHE = 5120 / 132  # bytes a cycle that a multiprocessor reads: an A100's for all of them
REGISTERS, SHARED_BYTES, RESERVED_BYTES = (
    64 * 1024,
    228 * 1024,
    1024,
)  # of a multiprocessor, a block
OF_THE_PEAK = {"IGMMA": 1.0, "IMMA": 0.62}

CYCLES: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("FADD", "FMUL", "FFMA"), ("float32", 1)),
    **dict.fromkeys(("IMAD", "CS2R", "IDP"), ("multiply", 2)),
    **dict.fromkeys(("MUFU", "F2I", "I2F", "POPC", "FLO", "BREV"), ("slow", 8)),
    **dict.fromkeys(("LDS", "STS", "LDSM", "LDG", "LD", "STG", "LDGSTS", "SHFL"), ("memory", 4)),
}
"""The unit of an operation, and for how many cycles it keeps a quarter of a multiprocessor busy."""

ON_THE_ALU = ("alu", 2.0)  # integers, comparisons, selections, I2FP
NO_UNIT = ("BRA", "BSSY", "BSYNC", "NOP", "WARPSYNC", "ENDCOLLECTIVE", "BAR", "EXIT")
UNIFORM = ("U", "R2UR", "S2UR", "LDC", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "MEMBAR", "FENCE")

# Of a layer of Llama-3.1-8B: inputs and outputs.
MATRICES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))
WEIGHTS = sum(inputs * outputs for inputs, outputs in MATRICES)
SEGMENTS, CHANNELS_OF_BLOCK = 8, 256
BLOCKS = WEIGHTS / CHANNELS_OF_BLOCK  # of all outputs
ENDS_OF_SEGMENTS = SEGMENTS * sum(outputs for _, outputs in MATRICES) / BLOCKS  # of a block
HEADS, KEY_HEADS, HEAD_SIZE = 32, 8, 128

TILES_OF_ROWS = {96: 96, 128: 128, 192: 96, 256: 128, 2048: 128, 8192: 128}
"""Rows of the products that are predicted, and those of their tiles."""

RIVALS = {"cuBLAS": 750e12, "FlashAttention-3": 610e12}
"""FLOP/s in bfloat16: large products on an H100; causal, head size 128, 8,192 tokens (Shah et al.
2024, "FlashAttention-3", figure 5)."""


@dataclass(frozen=True)
class Kernel:
    """A kernel and its main loop.

    Attributes:
        what: it computes, in the words of the table.
        source: in csrc/cuda.
        symbol: a part of its mangled name that no other kernel has.
        operation: of the tensor cores, that is in the loop.
        depth: of the loop in the loops that have the operation; 0 is outermost.
        trips: of the loops in it.
        longest: the share of passes that are the longest ones.
        warps: of a block of threads, that go through the loop.
        tensor: operations in int8 that a block's pass computes, sums of products as two.
        bytes: that a block's pass reads from the second cache, or from memory.
        threads: of a block.
        shared: the bytes of shared memory that a block is launched with, in C++; None for none.
        header: that it needs.
        groups: of warps, that do not wait for each other.
        beside: the operation that the loop of other warps has, which do something else meanwhile.
        around: the longest passes have, besides, what is around the main loop in the next outer
            one, of whose inner loops these are the trips.
    """

    what: str
    source: str
    symbol: str
    operation: str
    depth: int
    trips: tuple[int, ...]
    longest: float
    warps: int
    tensor: int
    bytes: float
    threads: int
    shared: str | None = None
    header: str | None = None
    groups: int = 1
    beside: str | None = None
    around: tuple[int, ...] | None = None

    def loop(self, function: Function, depth: int) -> Loop:
        (loop,) = function.loops_with(self.operation)
        for _ in range(depth):
            (loop,) = function.with_operation(loop.inner, self.operation)
        return loop

    def pass_of(self, functions: Mapping[str, Function], shared_bytes: int) -> Pass:
        """Count a pass through the main loop."""
        (function,) = (one for name, one in functions.items() if self.symbol in name)
        loop, trips = self.loop(function, self.depth), list(self.trips)
        shortest = by_operation(function.way(loop, trips, longest=False))
        if self.around is None:
            longest = by_operation(function.way(loop, trips, longest=True))
        else:
            outer = self.loop(function, self.depth - 1)
            longest = shortest + by_operation(function.way(outer, list(self.around), longest=True))
        others = self._others(function)
        return Pass(self, function, shared_bytes, shortest, longest, self.longest, others)

    def _others(self, function: Function) -> Counter[str]:
        """Count a pass of the warps beside those, the shortest one that does it in one go."""
        if self.beside is None:
            return Counter()
        (loop,) = function.loops_with(self.beside)
        trips = [1] * len(loop.inner)
        return by_operation(function.way(loop, trips, longest=False, through=self.beside))


@dataclass(frozen=True)
class Pass:
    """A pass of a block of threads through the main loop of its kernel.

    Attributes:
        kernel: whose.
        function: its machine code.
        shared_bytes: that it is launched with.
        shortest: how many of each operation a warp executes in most passes.
        longest: and in some.
        share: these.
        others: what each of four other warps executes beside it.
    """

    kernel: Kernel
    function: Function
    shared_bytes: int
    shortest: Counter[str]
    longest: Counter[str]
    share: float
    others: Counter[str]

    def with_longest(self, share: float) -> Pass:
        """Return the mean of other passes."""
        return replace(self, share=share)

    @property
    def operations(self) -> dict[str, float]:
        """How many of each a warp executes."""
        return {
            name: self.shortest[name] * (1 - self.share) + self.longest[name] * self.share
            for name in self.shortest | self.longest
        }

    @property
    def instructions(self) -> float:
        """Of a warp."""
        return sum(self.operations.values())

    def units(self) -> dict[str, float]:
        """Return for how many cycles a block keeps each unit busy, of a quarter's."""
        found: defaultdict[str, float] = defaultdict(float)
        share = self.kernel.warps / QUARTERS
        for operations, warps in ((self.operations, share), (self.others, 1.0)):
            for name, count in operations.items():
                found["issue"] += count * warps
                if "MMA" in name or name in NO_UNIT or name.startswith(UNIFORM):
                    continue
                unit, each = CYCLES.get(name, ON_THE_ALU)
                found[unit] += count * each * warps
        # IMAD has one half of the lanes of float32, so that both take turns there.
        found["float32"] += found["multiply"] / 2
        rate = TENSOR_OPERATIONS * OF_THE_PEAK[self.kernel.operation]
        reading = self.kernel.bytes / SECOND_CACHE
        return {**found, "tensor": self.kernel.tensor / rate, "second cache": reading}

    def resident_blocks(self) -> int:
        """Return how many blocks of threads a multiprocessor has registers and memory for."""
        registers = -(-self.function.registers // 8) * 8 * self.kernel.threads
        shared = self.shared_bytes + self.function.shared_bytes + RESERVED_BYTES
        return min(REGISTERS // registers, SHARED_BYTES // shared)

    def together(self) -> float:
        """Cycles of a pass on a multiprocessor, if all units work at once."""
        return max(self.units().values())

    def apart(self) -> float:
        """Cycles if tensor cores wait for all else but copies, and all else for them."""
        units = self.units()
        tensor, reading = units.pop("tensor"), units.pop("second cache")
        return max(reading, tensor + max(units.values()))

    def expected(self) -> float:
        """Cycles if some groups of warps take turns at the tensor cores, each when it comes.

        By mean value analysis of a closed network (Reiser and Lavenberg 1980): a group waits for
        those that it finds at the tensor cores, has its products, and then does all else, in the
        time that the groups take for it together.
        """
        units = self.units()
        tensor, reading = units.pop("tensor") / self.kernel.groups, units.pop("second cache")
        others = max(units.values())
        before = 0.0  # groups that are found there
        for count in range(1, self.kernel.groups + 1):
            there = tensor * (1 + before)
            before = count * there / (there + others)
        return max(reading, there + others)


# Keys and values of 64 tokens.
BLOCK_BYTES = 64 * (4 * HEAD_SIZE + 2)

SIMPLE = Kernel(
    "attention, 16 x 64 tokens",
    "attention/attention.cu",
    "attention_kernelILi4ELb0E",
    "IMMA",
    1,
    (2,),
    0.0,
    4,
    16 * 64 * HEAD_SIZE * 2 * 2 * 4,
    BLOCK_BYTES,
    128,
)

KERNELS = {
    "prompt": Kernel(
        "attention in prompts, 128 x 64 tokens",
        "attention/prompt_attention.cu",
        "prompt_attention_kernelILi128ELb1E",
        "IGMMA",
        1,
        (1,),
        1 / 64,
        8,
        128 * 64 * HEAD_SIZE * 2 * 2 * 4,
        BLOCK_BYTES,
        384,
        "sizeof(vllm_fork::PromptMemory<128>)",
        "attention/prompt_memory.cuh",
        groups=2,
        beside="LDGSTS",
    ),
    "simple": SIMPLE,
    "decode": replace(
        SIMPLE, what="attention in decoding, 16 x 64 tokens", symbol="attention_kernelILi4ELb1E"
    ),
    **{
        f"{rows} rows": Kernel(
            f"product, 128 x {rows} x {CHANNELS_OF_BLOCK} channels",
            "product/product.cu",
            f"multiply_by_warpgroups_kernelINS_13WarpgroupTileILi{rows // 8}E",
            "IGMMA",
            2,
            (CHANNELS_OF_BLOCK // 32 - 1, 1),
            ENDS_OF_SEGMENTS,
            8,
            128 * rows * CHANNELS_OF_BLOCK * 2 * 3,
            # One of seven pending sums goes through the second cache.
            2 * CHANNELS_OF_BLOCK * (128 + rows) + 2 * 4 * 128 * rows * ENDS_OF_SEGMENTS / SEGMENTS,
            384,
            f"vllm_fork::KernelOf<vllm_fork::WarpgroupTileOf{rows}>::kSharedBytes",
            "product/product.cuh",
            groups=2,
            around=(0, 1),
        )
        for rows in (128, 96)
    },
    "one": Kernel(
        "product, 64 x 8 x 128 channels",
        "product/product.cu",
        "TileShapeILi4ELi1ELi1ELi1ELi4ELi3ELi4ELb0ELNS_11TensorCoresE0E",
        "IMMA",
        1,
        (1,),
        0.5,
        4,
        64 * 8 * 128 * 2 * 3,
        2 * 128 * (64 + 8),
        128,
        "vllm_fork::KernelOf<vllm_fork::TileOf8<vllm_fork::TensorCores::kInt8>>::kSharedBytes",
        "product/product.cuh",
    ),
}


def by_operation(names: Mapping[str, int]) -> Counter[str]:
    """Return how often operations occur, whatever their modifiers."""
    found: Counter[str] = Counter()
    for name, count in names.items():
        found[name.partition(".")[0]] += count
    return found


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
    most = rows if parts == 1 else -(-rows // parts // 192) * 192
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


def counted(folder: Path) -> dict[str, Pass]:
    """Compile the kernels, and count a pass of each main loop."""
    sources = sorted({one.source for one in KERNELS.values()})
    functions = {
        source: disassembled(CSRC / "cuda" / source, "sm_90a", folder) for source in sources
    }
    return {
        key: one.pass_of(functions[one.source], shared_bytes(one, folder))
        for key, one in KERNELS.items()
    }


def shared_bytes(kernel: Kernel, folder: Path) -> int:
    """Return with how much shared memory a kernel is launched."""
    if kernel.shared is None:
        return 0
    return value_of(kernel.shared, CSRC / "cuda" / str(kernel.header), "sm_90a", folder)


def rows_of_passes(passes: Mapping[str, Pass]) -> list[tuple[str, ...]]:
    """Return the first table: what a pass has, and for how long it keeps units busy."""
    rows = []
    for one in passes.values():
        units = one.units()
        names = ("tensor", "issue", "alu", "float32", "slow", "memory", "second cache")
        rows.append(
            (
                one.kernel.what,
                f"{one.resident_blocks()}",
                f"{one.instructions:,.0f}",
                f"{one.function.registers}",
                f"{one.kernel.bytes / 1024:.0f}",
                *(f"{units.get(name, 0):,.0f}" for name in names),
            )
        )
    return rows


def rows_of_times(passes: Mapping[str, Pass]) -> list[tuple[str, ...]]:
    """Return the second table: times beside the rivals'."""
    rows: list[tuple[str, ...]] = []
    for one in predictions():
        rows.append((one.what, *(f"{ratio:.1f}" for ratio in one.ratios(passes[one.kernel]))))
    return rows


PASSES = (
    *("a pass of a block", "blocks", "instructions", "registers", "KiB read", "tensor", "issue"),
    *("integers", "float32", "slow", "loads", "second cache"),
)
TIMES = ("time beside the rival's", "units at once", "expected", "tensor cores by turns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/gpu.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        passes = counted(Path(folder))
    tables = ((PASSES, rows_of_passes(passes)), (TIMES, rows_of_times(passes)))
    for heads, rows in tables:
        table = Table(*heads)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    if options.write:
        text = "\n\n".join(markdown(*one) for one in tables)
        PAGE.write_text(between(PAGE.read_text(), BEGIN, END, text))


if __name__ == "__main__":
    main()
