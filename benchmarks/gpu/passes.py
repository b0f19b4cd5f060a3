"""Passes of the CUDA kernels through their main loops: what they execute, and what an H100 takes.

Each kernel is compiled for sm_90a. Of its main loop the shortest pass that goes through all
products is counted, and the longest one where a share of the passes takes that: at the end of a
block or of a segment of input channels, or where queries do not see all tokens of a block.
Instructions are weighed with the rates that NVIDIA publishes for compute capability 9.0 (CUDA
Programming Guide, "Throughput of Native Arithmetic Instructions"), a tensor core's with the peak
of the H100 (989 TFLOP/s in bfloat16, twice that in int8) and, for mma.sync, with 62 % of it (Luo et
al. 2024, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu.machine_code import CSRC, Function, Loop, disassembled, value_of

MULTIPROCESSORS, QUARTERS = 132, 4
TENSOR_OPERATIONS = 8192  # of int8, of a multiprocessor in a cycle
SECOND_CACHE = 5120 / 132  # bytes a cycle that a multiprocessor reads: an A100's for all of them
REGISTERS, SHARED_BYTES = 64 * 1024, 228 * 1024  # of a multiprocessor
RESERVED_BYTES = 1024  # of shared memory, for each block of threads
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
        reading: the share of the second cache's rate that copies reach.
    """

    kernel: Kernel
    function: Function
    shared_bytes: int
    shortest: Counter[str]
    longest: Counter[str]
    share: float
    others: Counter[str]
    reading: float = 1.0

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
        reading = self.kernel.bytes / (SECOND_CACHE * self.reading)
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
        for rows in (128, 96, 64)
    },
    **{
        f"{rows} rows": Kernel(
            f"product, 64 x {rows} x 128 channels",
            "product/product.cu",
            f"TileShapeILi4ELi1ELi1ELi{rows // 8}ELi4ELi3ELi{resident}ELb0ELNS_11TensorCoresE0E",
            "IMMA",
            1,
            (1,),
            0.5,
            4,
            64 * rows * 128 * 2 * 3,
            2 * 128 * (64 + rows),
            128,
            f"vllm_fork::KernelOf<vllm_fork::TileOf{rows}<vllm_fork::TensorCores::kInt8>>"
            "::kSharedBytes",
            "product/product.cuh",
        )
        for rows, resident in ((8, 4), (16, 3))
    },
}
"""Those of products have the rows of their tile as keys. With up to 16 rows every second pass
counts as one that ends a segment, which is more than there are."""


def by_operation(names: Mapping[str, int]) -> Counter[str]:
    """Return how often operations occur, whatever their modifiers."""
    found: Counter[str] = Counter()
    for name, count in names.items():
        found[name.partition(".")[0]] += count
    return found


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
