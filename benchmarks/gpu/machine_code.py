"""The machine code of CUDA kernels: its loops, and the instructions of a way through one.

Source is compiled by nvcc for one architecture and taken apart by nvdisasm, which Triton brings.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

from distribution.nvcc import nvcc

CSRC = Path(__file__).resolve().parents[2] / "csrc"

_FUNCTION = re.compile(r"^\.text\.(\S+):$", re.M)
_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", re.M
)
_TARGET = re.compile(r"\.L_x_\d+")
_ENDS = ("BRA", "EXIT", "RET", "BRX")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        address: in its function, bytes.
        name: with its modifiers, such as IMAD.MOV.U32.
        operands: as nvdisasm writes them.
        is_conditional: whether a predicate decides about it.
    """

    address: int
    name: str
    operands: str
    is_conditional: bool

    @property
    def operation(self) -> str:
        """The name without modifiers."""
        return self.name.partition(".")[0]


@dataclass
class Loop:
    """A loop of a function.

    Attributes:
        blocks: of instructions, by their numbers, those of inner loops among them.
        head: the block that it begins with.
        inner: the loops in it, in the order of their addresses.
    """

    blocks: set[int]
    head: int
    inner: list[Loop] = field(default_factory=list)


@dataclass
class Function:
    """A kernel, taken apart.

    Attributes:
        name: mangled.
        blocks: of instructions that are executed one after the other.
        graph: which block may follow which.
        registers: of a thread.
        shared_bytes: that are known when it is compiled.
    """

    name: str
    blocks: list[list[Instruction]]
    graph: nx.DiGraph
    registers: int = 0
    shared_bytes: int = 0

    def loops(self) -> list[Loop]:
        """Return the outermost loops, in the order of their addresses; each has its inner ones."""
        found: dict[int, set[int]] = {}
        parents = nx.immediate_dominators(self.graph, 0)
        for end, head in self.graph.edges:
            if _dominates(parents, head, end):
                found.setdefault(head, {head}).update(_body(self.graph, head, end))
        largest_first = sorted(found.items(), key=lambda pair: -len(pair[1]))
        outermost: list[Loop] = []
        for head, blocks in largest_first:
            level = outermost
            while around := next((one for one in level if head in one.blocks), None):
                level = around.inner
            level.append(Loop(blocks, head))
            level.sort(key=lambda one: one.head)
        return outermost

    def loops_with(self, operation: str) -> list[Loop]:
        """Return the outermost loops that have an operation."""
        return self.with_operation(self.loops(), operation)

    def with_operation(self, loops: list[Loop], operation: str) -> list[Loop]:
        """Return those of some loops that have an operation."""
        return [one for one in loops if any(self._has(block, operation) for block in one.blocks)]

    def way(
        self, loop: Loop, trips: list[int], *, longest: bool, through: str | None = None
    ) -> Counter[str]:
        """Return the instructions of one pass through a loop, by their names.

        The pass is the longest or the shortest one by the number of instructions. The shortest goes
        through every block with a tensor core's instruction, or through the one with most of
        another.

        Args:
            loop: of this function.
            trips: how often each inner loop is passed through, in the order of their addresses.
            longest: which.
            through: the operation, if not a tensor core's.

        Raises:
            ValueError: the loop has another number of inner loops.
        """
        if len(trips) != len(loop.inner):
            raise ValueError(f"{self.name}: {len(loop.inner)} inner loops, not {len(trips)}.")
        weights = {block: self._counts(block) for block in loop.blocks}
        graph = self.graph.subgraph(loop.blocks).copy()
        graph.remove_edges_from([edge for edge in graph.edges if edge[1] == loop.head])
        for inner, times in zip(loop.inner, trips, strict=True):
            own = self.way(inner, [1] * len(inner.inner), longest=longest)
            weights[inner.head] = Counter({name: n * times for name, n in own.items()})
            _shrink(graph, inner)
        required = [block for block in graph if _is_tensor(weights[block])]
        if through is not None:
            required = [max(graph, key=lambda block: self._count(block, through))]
        sizes = {block: sum(weights[block].values()) for block in graph}
        path = _path(graph, sizes, loop.head, [] if longest else required, longest=longest)
        return sum((weights[block] for block in path), Counter[str]())

    def _counts(self, block: int) -> Counter[str]:
        return Counter(one.name for one in self.blocks[block])

    def _count(self, block: int, operation: str) -> int:
        return sum(one.operation == operation for one in self.blocks[block])

    def _has(self, block: int, operation: str) -> bool:
        return self._count(block, operation) > 0


def disassembled(source: Path, architecture: str, folder: Path) -> dict[str, Function]:
    """Compile a file of kernels, and take them apart.

    Args:
        source: a .cu file of csrc/cuda.
        architecture: such as sm_90a.
        folder: for what the compiler writes.

    Returns:
        its kernels by their mangled names.

    Raises:
        RuntimeError: nvcc or nvdisasm is missing.
    """
    compiler, tool = nvcc(), nvdisasm()
    if compiler is None or tool is None:
        raise RuntimeError("nvcc and nvdisasm are needed: pip install nvidia-cuda-nvcc triton.")
    binary = folder / f"{source.stem}.cubin"
    said = subprocess.run(
        [
            *(str(compiler), "-cubin", "-std=c++17", "-O3", "-fmad=false", f"-arch={architecture}"),
            *(f"-I{CSRC}", "-Xptxas=-v", str(source), "-o", str(binary)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout
    text = subprocess.run([str(tool), "-c", str(binary)], stdout=subprocess.PIPE, check=True)
    functions = functions_of(text.stdout.decode())
    for name, registers, shared in properties_of(said):
        functions[name].registers, functions[name].shared_bytes = registers, shared
    return functions


def value_of(expression: str, header: Path, architecture: str, folder: Path) -> int:
    """Return the value that a positive constant of C++ has for one architecture.

    Args:
        expression: of the constant.
        header: of csrc/cuda, that it needs.
        architecture: such as sm_90a.
        folder: for what the compiler writes.
    """
    source, result = folder / "value.cu", folder / "value.ptx"
    source.write_text(f'#include "{header}"\n__device__ char value[{expression}];\n')
    options = ("-ptx", "-std=c++17", f"-arch={architecture}", f"-I{CSRC}")
    subprocess.run([str(nvcc()), *options, str(source), "-o", str(result)], check=True)
    found = re.search(r"\bvalue\[(\d+)\]", result.read_text())
    assert found, expression
    return int(found[1])


def nvdisasm() -> Path | None:
    """Return the disassembler that Triton brings; None if there is no Triton."""
    try:
        import triton
    except ImportError:
        return None
    found = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return found if found.exists() else None


def properties_of(said: str) -> list[tuple[str, int, int]]:
    """Return what ptxas says of each kernel: its name, registers, and bytes of shared memory."""
    parts = re.split(r"Compiling entry function '(\w+)'", said)
    found = []
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        registers = re.search(r"Used (\d+) registers", text)
        shared = re.search(r"(\d+) bytes smem", text)
        found.append((name, int(registers[1]) if registers else 0, int(shared[1]) if shared else 0))
    return found


def functions_of(text: str) -> dict[str, Function]:
    """Return the functions of what nvdisasm has written, by their mangled names."""
    parts = _FUNCTION.split(text)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name: _function(name, body) for name, body in pairs}


def _function(name: str, body: str) -> Function:
    blocks: list[list[Instruction]] = [[]]
    places: dict[str, int] = {}
    for line in body.splitlines():
        if label := _LABEL.match(line):
            if blocks[-1]:
                blocks.append([])
            places[label[1]] = len(blocks) - 1
        elif match := _INSTRUCTION.match(line):
            one = Instruction(int(match[1], 16), match[3], match[4], _is_conditional(match))
            blocks[-1].append(one)
            if one.operation in _ENDS:
                blocks.append([])
    graph = nx.DiGraph()
    graph.add_node(0)
    for number, block in enumerate(blocks):
        last = block[-1] if block else None
        if last is not None and last.operation == "BRA":
            target = _TARGET.search(last.operands)
            graph.add_edge(number, places[target[0]] if target else number)
        goes_on = last is None or last.operation not in _ENDS or last.is_conditional
        if goes_on and number + 1 < len(blocks):
            graph.add_edge(number, number + 1)
    reached = nx.descendants(graph, 0) | {0}
    return Function(name, blocks, graph.subgraph(reached).copy())


def _is_conditional(match: re.Match[str]) -> bool:
    """A branch of a whole warp names its predicate among the operands."""
    return match[2] is not None or bool(re.match(r"!?U?P\d|U?R\d", match[4]))


def _dominates(parents: dict[int, int], block: int, other: int) -> bool:
    while other != block and parents.get(other, other) != other:
        other = parents[other]
    return other == block


def _body(graph: nx.DiGraph, head: int, end: int) -> set[int]:
    """Return the blocks from which the end of a loop is reached without its head."""
    without = graph.reverse(copy=True)
    without.remove_node(head)
    return {end} | nx.descendants(without, end) if end != head else set()


def _shrink(graph: nx.DiGraph, inner: Loop) -> None:
    """Let the head of an inner loop stand for all of it."""
    for block in inner.blocks - {inner.head}:
        for after in list(graph.successors(block)) if block in graph else []:
            if after not in inner.blocks:
                graph.add_edge(inner.head, after)
        if block in graph:
            graph.remove_node(block)
    graph.remove_edges_from([edge for edge in graph.edges if edge[0] == edge[1]])


def _is_tensor(counts: Counter[str]) -> bool:
    return any("MMA" in name for name in counts)


def _path(
    graph: nx.DiGraph, sizes: dict[int, int], head: int, required: list[int], *, longest: bool
) -> list[int]:
    """Return the blocks of the longest or the shortest way from a loop's head to its end."""
    sign = -1 if longest else 1
    best: dict[int, tuple[tuple[int, int], int | None]] = {head: ((0, sign * sizes[head]), None)}
    for block in nx.topological_sort(graph):
        for after in graph.successors(block):
            if block not in best:
                continue
            (missed, size), _ = best[block]
            cost = (missed - (after in required), size + sign * sizes[after])
            if after not in best or cost < best[after][0]:
                best[after] = cost, block
    ends = [block for block in best if not graph.out_degree(block)]
    path = [min(ends, key=lambda block: best[block][0])]
    while (before := best[path[-1]][1]) is not None:
        path.append(before)
    return path[::-1]
