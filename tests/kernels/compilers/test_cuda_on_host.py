"""The emulation of CUDA on a CPU: kernels give what they should, and faulty ones are found out."""

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.emulated_gpu.library import CSRC
from tests.kernels.emulation import compile_emulation, pointer
from tests.kernels.machine_code import NVCC
from tests.kernels.portable_cases import integers

SOURCE = Path(__file__).with_name("faulty_kernels.cpp")
THREADS = 96
SEEDS = range(1, 21)
FAULTS = {
    "exchange": (
        *("none", "no barrier before reading", "no barrier before overwriting"),
        *("barrier of some", "early exit", "write beyond shared", "read unwritten"),
        "wrong address",
    ),
    "sum": (
        "none",
        "no warp barrier",
        "shuffle of some",
        "shuffle of half",
        "write beyond dynamic",
    ),
    "copy": (
        *("none", "no wait", "wrong phase", "fewer bytes", "more bytes", "more arrivals"),
        *("not aligned", "part of a unit", "copy beyond", "no beginning", "not shown"),
    ),
}
KERNELS = [(kernel, fault) for kernel, faults in FAULTS.items() for fault in faults]
"""In the order of faulty_kernels.cpp."""
EXPECTED = {
    "exchange": 10 * np.arange(THREADS)[::-1] + np.arange(THREADS),
    "sum": 496 + 11 + (np.arange(THREADS) % 32 ^ 3),
    "copy": np.full(THREADS, THREADS - 1),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = compile_emulation(SOURCE, tmp_path_factory.mktemp("faulty"))
    library.run_kernel.restype = library.run_passing.restype = ctypes.c_char_p
    return library


def run(library: ctypes.CDLL, kernel: str, fault: str, seed: int) -> tuple[str, bool]:
    """What the emulation says is wrong, and whether the result is right."""
    result = np.arange(-16, THREADS, dtype=np.int32)  # of which a part begins at 16 bytes
    result = result[-result.ctypes.data % 64 // 4 :][:THREADS]
    result[:] = np.arange(THREADS)
    place = KERNELS.index((kernel, fault))
    said = library.run_kernel(place, ctypes.c_void_p(result.ctypes.data), ctypes.c_uint64(seed))
    return said.decode(), bool((result == EXPECTED[kernel]).all())


@pytest.mark.parametrize("kernel", FAULTS)
def test_a_correct_kernel(library: ctypes.CDLL, kernel: str) -> None:
    for seed in SEEDS:
        assert run(library, kernel, "none", seed) == ("", True)


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [
        ("exchange", "no barrier before reading"),
        ("exchange", "no barrier before overwriting"),
        ("exchange", "read unwritten"),
        ("sum", "no warp barrier"),
    ],
)
def test_a_race_shows(library: ctypes.CDLL, kernel: str, fault: str) -> None:
    for seed in SEEDS:
        assert run(library, kernel, fault, seed) == ("", False)


@pytest.mark.parametrize("fault", ["no wait", "wrong phase"])
def test_a_copy_that_is_not_awaited_shows(library: ctypes.CDLL, fault: str) -> None:
    """By some of the orders; the copy may be there early, or not before the block ends."""
    found = {run(library, "copy", fault, seed) for seed in SEEDS}
    assert ("", False) in found
    for said, _ in found:
        assert re.match("$|A block ends before its copies|Not all threads of a block come", said)


@pytest.mark.parametrize(
    ("kernel", "fault", "sentence"),
    [
        ("exchange", "barrier of some", "Not all threads of a block come to "),
        ("exchange", "early exit", "Not all threads of a block come to "),
        ("sum", "shuffle of some", "Not all threads of a warp come to "),
        ("sum", "shuffle of half", "A warp's instruction leaves out lanes."),
        ("exchange", "write beyond shared", "Something was written beside shared memory."),
        ("sum", "write beyond dynamic", "Something was written beside shared memory."),
        ("exchange", "wrong address", "A thread uses a wrong address."),
        ("copy", "fewer bytes", "Not all threads of a block come to "),
        ("copy", "more bytes", "Not all threads of a block come to "),
        ("copy", "more arrivals", "More threads arrive at a barrier than it counts."),
        ("copy", "not aligned", "A copy is not aligned to its size."),
        ("copy", "part of a unit", "A copy is not of whole units."),
        ("copy", "copy beyond", "A copy goes beside the shared memory of the launch."),
        ("copy", "no beginning", "A thread arrives at a barrier that has not begun."),
        ("copy", "not shown", "What a thread wrote is not shown to products and bulk copies."),
    ],
)
def test_a_fault_is_named(library: ctypes.CDLL, kernel: str, fault: str, sentence: str) -> None:
    for seed in SEEDS:
        said, _ = run(library, kernel, fault, seed)
        assert said.startswith(sentence)
    assert run(library, kernel, "none", 1) == ("", True)


PASSING = ("none", "no wait", "wait of some", "read before", "write before")
"""Kernels that begin early: in the order of faulty_kernels.cpp."""


def passed_on(library: ctypes.CDLL, fault: str, seed: int) -> tuple[str, bool]:
    """What the emulation says is wrong, and whether numbers that were passed on are right."""
    blocks, times = 5, 4
    count = 32 * blocks
    weight = np.arange(count, dtype=np.int32)
    numbers = np.tile(weight, 2)
    expected = weight
    for _ in range(times):
        expected = np.roll(expected + weight, 1)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (numbers, weight)]
    place = ctypes.c_int(PASSING.index(fault))
    sizes = (ctypes.c_int(blocks), ctypes.c_int(times), ctypes.c_uint64(seed))
    said = library.run_passing(place, *pointers, *sizes)
    return said.decode(), bool((numbers == np.tile(expected, 2)).all())


def test_kernels_that_begin_early(library: ctypes.CDLL) -> None:
    for seed in SEEDS:
        assert passed_on(library, "none", seed) == ("", True)


@pytest.mark.parametrize("fault", ["no wait", "wait of some"])
def test_a_kernel_that_does_not_wait_for_the_ones_before_is_named(
    library: ctypes.CDLL, fault: str
) -> None:
    for seed in SEEDS:
        said, _ = passed_on(library, fault, seed)
        assert said == "A thread ends without having waited for the kernels before."


@pytest.mark.parametrize("fault", ["read before", "write before"])
def test_what_a_kernel_does_before_it_waits_shows(library: ctypes.CDLL, fault: str) -> None:
    for seed in SEEDS:
        assert passed_on(library, fault, seed) == ("", False)


def test_the_matrix_instruction(library: ctypes.CDLL) -> None:
    a, b = (bytes_of(rows, seed) for rows, seed in ((16, 1), (8, 2)))
    result = integers(16 * 8, 3).astype(np.int32).reshape(16, 8) >> 8
    expected = result + a.astype(np.int32) @ b.astype(np.int32).T
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, result)]
    library.run_multiply(*pointers)
    assert (result == expected).all()


def multiply_bfloat16(
    library: ctypes.CDLL, a: torch.Tensor, b: torch.Tensor, sums: torch.Tensor
) -> torch.Tensor:
    """sums + a b^T as tensor cores may make it, for a [16, 16] and b [8, 16]."""
    a, b, result = a.bfloat16().contiguous(), b.bfloat16().contiguous(), sums.float().clone()
    library.run_multiply_bfloat16(*map(pointer, (a, b, result)))
    return result


def test_the_matrix_instruction_of_bfloat16(library: ctypes.CDLL) -> None:
    a, b = (torch.from_numpy(bytes_of(rows, rows)[:, :16].astype(np.int32)) for rows in (16, 8))
    sums = torch.from_numpy(integers(16 * 8, 3).astype(np.int32).reshape(16, 8) >> 9)
    assert (multiply_bfloat16(library, a, b, sums) == sums + a @ b.T).all()


@pytest.mark.parametrize(
    ("addends", "found"),
    [
        ([2**24 - 2, 1, 1], 2**24),
        ([2**24, 1, 1], 2**24),  # alone they are less than the last bit
        ([2**24, 2, 1], 2**24 + 2),
        ([2**24 - 1, 1, 1, 1], 2**24 + 2),
        ([-(2**24), -3], -(2**24) - 2),
        ([2**24, 1, -(2**24)], 0),
        ([-5, 3, 2], 0),
    ],
)
def test_sums_of_bfloat16_products_keep_24_bits(
    library: ctypes.CDLL, addends: list[int], found: int
) -> None:
    """Whatever tensor cores have more of must not be needed."""
    first, *others = addends
    a, b, sums = torch.zeros(16, 16), torch.ones(8, 16), torch.full((16, 8), first)
    a[:, 3 : 3 + len(others)] = torch.tensor(others)
    assert (multiply_bfloat16(library, a, b, sums) == found).all()


def bytes_of(rows: int, seed: int) -> NDArray[np.int8]:
    return integers(rows * 32, seed).astype(np.int8).reshape(rows, 32)


@pytest.mark.parametrize(("blocks", "threads"), [(0, 32), (1, 0), (1, 1025), (2**31, 32)])
def test_a_launch_that_no_gpu_takes(library: ctypes.CDLL, blocks: int, threads: int) -> None:
    invalid_configuration = 9
    assert library.launch_error(ctypes.c_uint(blocks), ctypes.c_uint(threads)) == (
        invalid_configuration
    )


def test_the_same_source_compiles_for_gpus(tmp_path: Path) -> None:
    source = tmp_path / "kernels.cu"
    kernels = (
        "exchange_with_opposite<Fault::kNone>(int*)",
        "sum_lanes<Fault::kNone>(int*)",
        "multiply<int>(const uint32_t*, const uint32_t*, int*)",
        "multiply<float>(const uint32_t*, const uint32_t*, float*)",
    )
    instances = "".join(f"template __global__ void {kernel};\n" for kernel in kernels)
    source.write_text(f'#include "faulty_kernels.cuh"\nnamespace vllm_fork {{\n{instances}}}\n')
    includes = (f"-I{CSRC}", f"-I{SOURCE.parent}")
    output = tmp_path / "kernels.ptx"
    command = [str(NVCC), "-ptx", "-std=c++17", "-arch=compute_80", *includes, str(source)]
    subprocess.run([*command, "-o", str(output)], check=True)
    text = output.read_text()
    assert "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" in text
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
    assert "bar.sync" in text
    assert "shfl.sync.down" in text
