"""Kernels that begin while the one before still runs: their waits, in machine code and emulated.

See csrc/cuda/primitives/dependent_launch.cuh. What other tests run of kernels that follow each
other is emulated so, too; here are faults that must be found.
"""

import ctypes
import re
from itertools import chain
from pathlib import Path

import pytest
import torch

from tests.kernels.emulation import Guarded, compile_emulation, pointer
from tests.kernels.faults import copy_sources, misplaced
from tests.kernels.machine_code import CSRC, KERNELS, machine_code
from tests.kernels.portable_cases import numbers
from tests.kernels.product.emulated_product import EmulatedProduct, TensorCores
from vllm.fork_kernels.portable.functions import Function, portable_gated
from vllm.fork_kernels.portable.norm import portable_rms_norm
from vllm.fork_kernels.portable.product import PackedWeight, pack_weight, portable_product

SOURCE = Path(__file__).with_name("dependent_layer.cpp")

# --- machine code --------------------------------------------------------------------------------
DEPENDENT = {
    "attention": {"attention", "merge_parts", "quantise_rows"},
    "cache": {"append", "append_rotated"},
    "functions": {"gated", "map", "quantise_rows"},
    "norm": {"norm", "norm_digits"},
    "product": {"multiply_by_warpgroups", "multiply_rows", "quantise_rows", "sum_partials"},
    "prompt_attention": {"prompt_attention"},
    "prompt_attention_64": {"prompt_attention"},
    "prompt_attention_adjusted": {"prompt_attention"},
    "prompt_attention_adjusted_64": {"prompt_attention"},
    "rotary": {"rotate"},
}
"""Kernels that are computed for every token, by the file that they are in."""

BEFORE = {"multiply_rows": {"LDGSTS"}, "multiply_by_warpgroups": {"UBLKPF"}}
"""What of the GPU's memory kernels touch before they wait: the weight."""

WAIT, LET_BEGIN = "ACQBULK", "PREEXIT"
GLOBAL = re.compile(r"(LD|LDG|ST|STG|ATOM|ATOMG|RED|REDG|UBLKCP|UBLKPF|LDGSTS)(\.|$)")


def name_of(kernel: str) -> str:
    found = re.search(r"\d+([a-z_]+)_kernel", kernel)
    assert found, kernel
    return found[1]


@pytest.mark.some(1)
@pytest.mark.parametrize("source", sorted(KERNELS))
def test_kernels_of_every_token_wait_first(source: str, shared_folder: Path) -> None:
    """Before that, they touch no memory of the GPU; products alone copy weights."""
    kernels = machine_code(source, "sm_90a", shared_folder).functions()
    waiting = {name for name, code in kernels.items() if WAIT in code}
    assert set(map(name_of, waiting)) == DEPENDENT.get(source, set())
    assert set(map(name_of, set(kernels) - waiting)).isdisjoint(DEPENDENT.get(source, set()))
    for name in waiting:
        code = kernels[name]
        before = {one.split(".")[0] for one in code[: code.index(WAIT)] if GLOBAL.match(one)}
        assert before == BEFORE.get(name_of(name), set())
        assert code.index(LET_BEGIN) > code.index(WAIT)
    for name in set(kernels) - waiting:
        assert LET_BEGIN not in kernels[name]


@pytest.mark.some(1)
@pytest.mark.parametrize("source", ["rotary", "norm"])
def test_other_gpus_have_no_waits(source: str, shared_folder: Path) -> None:
    for code in machine_code(source, "sm_80", shared_folder).functions().values():
        assert not {WAIT, LET_BEGIN} & set(code)


# --- emulated ------------------------------------------------------------------------------------
WAITS = "  wait_for_earlier_kernels();\n"
IN_PRODUCT = "  wait_for_earlier_kernels();  // at once, but in the first part\n"
QUANTISING = """\
  clear_counters(target);
  const StepCounts counts(target.shape);
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int64_t row = warp / counts.blocks();
"""
BLOCK = "(target, rows, row, counts, static_cast<int>(warp % counts.blocks()));\n"
FAULTS = {
    "a product copies digits before they are there": (
        "product/multiply_rows.cuh",
        f"{IN_PRODUCT}  queue.begin_rows(work);\n",
        f"  queue.begin_rows(work);\n{IN_PRODUCT}",
    ),
    "a product does not wait": ("product/multiply_rows.cuh", IN_PRODUCT, ""),
    "counters are cleared while a product still counts": (
        "product/quantise_rows.cuh",
        f"{WAITS}  clear_counters(target);\n",
        f"  clear_counters(target);\n{WAITS}",
    ),
    "an activation reads gates before they are there": (
        "product/quantise_rows.cuh",
        f"{WAITS}{QUANTISING}  if (row >= target.rows) return;\n  quantise_block{BLOCK}",
        f"{QUANTISING}  if (row < target.rows) quantise_block{BLOCK}{WAITS}",
    ),
    "a norm clears counters while a product still counts": (
        "rows/norm.cuh",
        f"{WAITS}  clear_counters(target);\n",
        f"  clear_counters(target);\n{WAITS}",
    ),
    "threads without a row do not wait": (
        "rows/norm.cuh",
        f"{WAITS}  clear_counters(target);\n  const int64_t row = norm_row<kThreads>();\n"
        "  if (row >= task.rows) return;\n",
        "  clear_counters(target);\n  const int64_t row = norm_row<kThreads>();\n"
        f"  if (row >= task.rows) return;\n{WAITS}",
    ),
    "warpgroups do not wait": (
        "product/hopper/multiply_by_warpgroups.cuh",
        f"  __syncthreads();\n{WAITS}",
        "  __syncthreads();\n",
    ),
    "the loader alone does not wait": (
        "product/hopper/multiply_by_warpgroups.cuh",
        f"  __syncthreads();\n{WAITS}",
        "  __syncthreads();\n  if (threadIdx.x < Tile::kMultiplying) wait_for_earlier_kernels();\n",
    ),
}
NAMED = "A thread ends without having waited for the kernels before."


def layer_library(fault: str | None, folder: Path) -> ctypes.CDLL:
    """Compile the kernels with a fault, or without."""
    parts = [(CSRC / "cuda" / part).rglob("*.*") for part in ("product", "rows")]
    copy_sources(chain(*parts), folder, FAULTS[fault] if fault else None)
    source = folder / "kernels" / "compilers" / SOURCE.name
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE.read_text())
    (folder / "kernels" / "emulated_launch.h").write_text(
        SOURCE.parent.with_name("emulated_launch.h").read_text()
    )
    library = compile_emulation(source, folder, f"-I{folder}")
    library.run_layers.restype = ctypes.c_char_p
    return library


SIZE, INNER, TIMES = 72, 96, 3


def layers_on_cpu(x: torch.Tensor, weights: list[PackedWeight]) -> torch.Tensor:
    for _ in range(TIMES):
        gates = portable_product(portable_rms_norm(x, None, 1e-5), weights[0])
        x = portable_product(portable_gated(gates, Function.SILU), weights[1])
    return x


def check_layers(
    library: ctypes.CDLL, gpu: EmulatedProduct, rows: int, splits: int, seed: int
) -> str:
    """Return what is wrong: what the emulation says, or that bits are others."""
    weights = [numbers(2 * INNER, SIZE, seed=1), numbers(SIZE, INNER, seed=2)]
    on_cpu = [pack_weight(weight) for weight in weights]
    on_gpu = [gpu.pack(w, None, own.segments)[0] for w, own in zip(weights, on_cpu, strict=True)]
    expected = layers_on_cpu(numbers(rows, SIZE, seed=3), on_cpu)
    x = numbers(rows, SIZE, seed=3)
    cores = TensorCores.INT8_WARPGROUPS
    bytes_needed = [
        gpu.library.workspace_bytes(
            *map(ctypes.c_int64, (*w.shape, own.segments, rows, 2, cores, splits))
        )
        for w, own in zip(weights, on_gpu, strict=True)
    ]
    workspace = Guarded((max(bytes_needed),), torch.uint8)
    others = [Guarded((rows, size), torch.float32) for size in (SIZE, 2 * INNER, INNER)]
    said: bytes = library.run_layers(
        ctypes.c_uint64(seed),
        *map(ctypes.c_int64, (TIMES, rows, SIZE, INNER, cores, splits)),
        (ctypes.c_int64 * 2)(*(own.segments for own in on_gpu)),
        *(pointer(own.packed) for own in on_gpu),
        *(pointer(one) for one in (workspace.tensor, x, *(other.tensor for other in others))),
    )
    workspace.checked()
    return said.decode() or ("" if torch.equal(x, expected) else "other bits")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedProduct:
    return EmulatedProduct.compile(tmp_path_factory.mktemp("products"))


CASES = ((2, 2), (5, 1), (20, 2), (70, 2))
"""Rows and splits: tiles of warps, and of warpgroups."""


@pytest.mark.long
def test_kernels_begin_early_and_have_the_bits_of_the_cpu(
    tmp_path: Path, gpu: EmulatedProduct
) -> None:
    library = layer_library(None, tmp_path)
    for rows, splits in CASES:
        for seed in range(1, 6):
            assert check_layers(library, gpu, rows, splits, seed) == ""


def test_every_fault_has_its_place() -> None:
    assert not misplaced(FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_finds_faults(fault: str, tmp_path: Path, gpu: EmulatedProduct) -> None:
    library = layer_library(fault, tmp_path)
    schedules = ((*case, seed) for seed in range(1, 11) for case in CASES)
    found = next(filter(None, (check_layers(library, gpu, *one) for one in schedules)), None)
    assert found in {"other bits", NAMED}, "no schedule has shown it"
