"""Hopper's CUDA kernel of products of many rows, emulated on a CPU: the bits of the CPU's own."""

import ctypes
import re
from pathlib import Path

import pytest
import torch

from tests.kernels.emulation import Guarded, compile_emulation, pointer
from tests.kernels.faults import copy_sources, misplaced
from tests.kernels.machine_code import CSRC
from tests.kernels.portable_cases import DTYPES, assert_same
from tests.kernels.product.emulated_product import EmulatedProduct, TensorCores
from tests.kernels.product.portable_product_cases import Case
from tests.kernels.product.test_cuda_emulation_product import packed_for_both
from vllm.fork_kernels.portable.product import pack_weight, portable_product

pytestmark = pytest.mark.some(1)

CORES = TensorCores.INT8_WARPGROUPS


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedProduct:
    return EmulatedProduct.compile(tmp_path_factory.mktemp("emulated_warpgroups"))


def assert_products_agree(
    case: Case,
    gpu: EmulatedProduct,
    splits: tuple[int, ...] = (0,),
    processors: int = 2,
    seed: int = 1,
) -> None:
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x, bias = case.make_x(), case.make_bias()
    expected = portable_product(x, on_cpu, bias)
    for some in splits:
        found = gpu.product(
            x, on_gpu, bias, cores=CORES, processors=processors, splits=some, seed=seed
        )
        assert_same(found, expected)


@pytest.mark.some(1)
@pytest.mark.parametrize("rows", [33, 64, 65, 96, 97, 128, 129, 150, 200])
@pytest.mark.parametrize("inputs", [100, 521, 1040, 2600])
def test_splits(rows: int, inputs: int, gpu: EmulatedProduct) -> None:
    """One to eight segments, of one step or of several blocks, shared out or not."""
    case = Case(rows, 140, inputs, kind="outliers", has_bias=True)
    assert_products_agree(case, gpu, splits=(1, 2, 4, 8))


@pytest.mark.some(1)
@pytest.mark.parametrize("outputs", [1, 16, 64, 65, 127, 129, 260])
@pytest.mark.parametrize("rows", [50, 90, 128])
def test_numbers_of_outputs(rows: int, outputs: int, gpu: EmulatedProduct) -> None:
    """Tiles that lack panels or groups of them, and results that begin anywhere."""
    assert_products_agree(Case(rows, outputs, 328, has_bias=True), gpu, splits=(1, 2))


@pytest.mark.long
def test_every_number_of_rows(gpu: EmulatedProduct) -> None:
    """All tiles, whole and in part."""
    case = Case(260, 35, 72, kind="outliers", has_bias=True)
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x, bias = case.make_x(), case.make_bias()
    whole = portable_product(x, on_cpu, bias)
    for rows in range(33, len(x) + 1):
        assert_same(gpu.product(x[:rows], on_gpu, bias, cores=CORES), whole[:rows])


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [
        *((128, 192, 4096), (256, 128, 4096), (96, 64, 14336), (192, 128, 3584), (70, 100, 11008)),
        *((64, 192, 4096), (64, 130, 14336), (40, 128, 3584)),
    ],
)
def test_shapes_of_models(rows: int, outputs: int, inputs: int, gpu: EmulatedProduct) -> None:
    """Some outputs of layers: Llama-3.1-8B's, Qwen2.5-7B's, Llama-2-7B's."""
    case = Case(rows, outputs, inputs, "bfloat16", "bfloat16", kind="outliers")
    assert_products_agree(case, gpu, splits=(1, 0), processors=1)


@pytest.mark.parametrize("rows", [1536, 1537, 1700])
def test_more_rows_than_at_once(rows: int, gpu: EmulatedProduct) -> None:
    assert_products_agree(Case(rows, 20, 32, has_bias=True), gpu)


@pytest.mark.parametrize("processors", [1, 3, 200])
def test_numbers_of_multiprocessors(processors: int, gpu: EmulatedProduct) -> None:
    """The digits of a tile come while the one before is multiplied and written."""
    case = Case(230, 300, 520, kind="outliers", has_bias=True)
    assert_products_agree(case, gpu, splits=(1, 8), processors=processors)


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(2, 12))
def test_orders_of_threads(seed: int, gpu: EmulatedProduct) -> None:
    case = Case(120, 150, 1040, kind="outliers")
    assert_products_agree(case, gpu, splits=(1, 2), processors=1, seed=seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_of_the_result(dtype: torch.dtype, gpu: EmulatedProduct) -> None:
    """Numbers out of range among the rows, too."""
    for outputs in (23, 40):
        case = Case(77, outputs, 520, "float32", "float32", "wild", has_bias=True)
        on_cpu, on_gpu = packed_for_both(case, gpu)
        x, bias = case.make_x(), case.make_bias()
        for splits in (1, 4):
            found = gpu.product(x, on_gpu, bias, dtype, cores=CORES, splits=splits)
            assert_same(found, portable_product(x, on_cpu, bias, dtype))


# --- faults --------------------------------------------------------------------------------------
FAULTS = {
    "digits are multiplied before they are there": (
        "product/hopper/warpgroup_sums.cuh",
        "memory.is_full[at.stage].wait(at.parity);",
        "",
    ),
    "a stage is filled before it is empty": (
        "product/hopper/warpgroup_loader.cuh",
        "if (is_reused) memory.is_empty[at.stage].wait(at.parity ^ 1);",
        "",
    ),
    "the wrong phase of a stage is awaited": (
        "product/hopper/warpgroup_loader.cuh",
        "memory.is_empty[at.stage].wait(at.parity ^ 1)",
        "memory.is_empty[at.stage].wait(at.parity)",
    ),
    "a stage is given back while it is multiplied": (
        "product/hopper/warpgroup_sums.cuh",
        "wait_for_products<1>();",
        "wait_for_products<2>();",
    ),
    "the stage that is multiplied is given back": (
        "product/hopper/warpgroup_sums.cuh",
        "at.stage + Tile::kStages - 2 : at.stage - 2",
        "at.stage + Tile::kStages - 1 : at.stage - 1",
    ),
    "sums are read before they are there": (
        "product/hopper/warpgroup_sums.cuh",
        "wait_for_products<0>();",
        "wait_for_products<1>();",
    ),
    "a warp gives back for another that still multiplies": (
        "product/hopper/warpgroup_memory.cuh",
        "is_empty) barrier.begin(Tile::kWarps);",
        "is_empty) barrier.begin(Tile::kWarps / 2);",
    ),
    "scales are filled before they were used": (
        "product/hopper/warpgroup_loader.cuh",
        "if (are_scales_reused) memory.are_used[at_scales.stage].wait(at_scales.parity ^ 1);",
        "",
    ),
    "the scales of another block are used": (
        "product/hopper/warpgroup_sums.cuh",
        "memory.scales[at_scales.stage];",
        "memory.scales[(at_scales.stage + 1) % Memory::kScales];",
    ),
    "fewer bytes are expected than are copied": (
        "product/hopper/warpgroup_loader.cuh",
        "arrive_expecting(pieces.digit_bytes() + pieces.scale_bytes());",
        "arrive_expecting(pieces.digit_bytes() + pieces.exponents.bytes());",
    ),
    "more bytes are expected than are copied": (
        "product/hopper/warpgroup_loader.cuh",
        "arrive_expecting(pieces.digit_bytes());",
        "arrive_expecting(pieces.digit_bytes() + 16);",
    ),
    "matrices are read at the wrong stride": (
        "product/hopper/warpgroup_instructions.cuh",
        "kMatrix, kRowTile);",
        "kMatrix, kWeightTile);",
    ),
    "copies do not see that barriers have begun": (
        "product/hopper/multiply_by_warpgroups.cuh",
        "show_to_products();  // and to the copies\n  __syncthreads();",
        "__syncthreads();",
    ),
    "barriers begin beside other threads": (
        "product/hopper/multiply_by_warpgroups.cuh",
        "show_to_products();  // and to the copies\n  __syncthreads();",
        "show_to_products();",
    ),
    "the loader keeps its registers": (
        "product/hopper/multiply_by_warpgroups.cuh",
        "keep_registers<kRegistersOfLoader>();",
        "",
    ),
    "results are put where pending sums still are": (
        "product/hopper/warpgroup_results.cuh",
        "__syncwarp();  // no lane needs pending sums any more",
        "",
    ),
    "results are read before they are there": (
        "product/hopper/warpgroup_results.cuh",
        "take(sums[0]);\n    __syncwarp();",
        "take(sums[0]);",
    ),
    "the warps of a tile have one ticket": (
        "product/hopper/warpgroup_results.cuh",
        "place.tile * Tile::kTickets + warp",
        "place.tile",
    ),
}

FAULTY_KERNEL = """
#include "cuda/product/product.cuh"
#include "emulated_launch.h"
using namespace vllm_fork;
extern "C" const char* run_product(uint64_t seed, int64_t outputs, int64_t inputs, int64_t segments,
                                   int64_t rows, int64_t splits, const float* x,
                                   const uint8_t* packed, uint8_t* workspace, float* result) {
  const ProductShape shape{outputs, inputs, segments};
  const Multiprocessors gpu{1, 0, TensorCores::kInt8Warpgroups, splits};
  return emulated(seed, [=] {
    const auto plan = plan_of<WarpgroupTileOf96>(shape, rows, gpu);
    const DigitTarget target{shape,     rows, nullptr, workspace, plan.counters_in(workspace),
                             plan.counters};
    quantise_rows(target, StoredRows<float>{x, inputs}, nullptr);
    return multiply<WarpgroupTileOf96>(shape, rows, packed, workspace,
                                       {result, Format::kFloat32, nullptr, Format::kFloat32}, gpu,
                                       nullptr);
  });
}
"""


def faulty_library(fault: str, folder: Path) -> ctypes.CDLL:
    """Compile the kernel with a fault; without, if there is none of that name."""
    sources = (CSRC / "cuda" / "product").rglob("*.cuh")
    copy_sources(sources, folder, FAULTS.get(fault))
    source = folder / "faulty.cpp"
    source.write_text(FAULTY_KERNEL)
    library = compile_emulation(source, folder, f"-I{folder}", f"-I{Path(__file__).parents[1]}")
    library.run_product.restype = ctypes.c_char_p
    return library


def is_right(
    library: ctypes.CDLL, gpu: EmulatedProduct, inputs: int, splits: int, seed: int
) -> bool:
    """Whether the bits are the CPU's; what the emulation objects to must be a fault's doing."""
    case = Case(100, 150, inputs, "float32", "float32")
    weight, x = case.make_weight(), case.make_x()
    on_cpu = pack_weight(weight)
    on_gpu, _ = gpu.pack(weight, None, on_cpu.segments)
    shape = (150, inputs, on_cpu.segments, len(x))
    numbers = [ctypes.c_int64(n) for n in (*shape[:3], len(x))]
    bytes_needed = gpu.library.workspace_bytes(*numbers, *map(ctypes.c_int64, (1, CORES, splits)))
    workspace = Guarded((bytes_needed,), torch.uint8)
    result = Guarded((len(x), 150), torch.float32)
    arguments = (x, on_gpu.packed, workspace.tensor, result.tensor)
    said = library.run_product(
        ctypes.c_uint64(seed), *numbers, ctypes.c_int64(splits), *map(pointer, arguments)
    ).decode()
    if said:
        objections = "Not all threads|has not begun|too many|More threads|ends before|not shown"
        assert re.search(objections, said)
        return False
    return torch.equal(result.checked(), portable_product(x, on_cpu))


CASES = ((256, 1), (520, 1), (520, 2))
"""Input channels and splits: blocks of one step, and of several."""


def test_every_fault_has_its_place() -> None:
    assert not misplaced(FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_finds_faults(fault: str, tmp_path: Path, gpu: EmulatedProduct) -> None:
    """A kernel that forgets to wait, or waits for something else, has other bits or stops."""
    library = faulty_library(fault, tmp_path)
    schedules = ((*case, seed) for seed in range(1, 21) for case in CASES)
    assert not all(is_right(library, gpu, *one) for one in schedules), "no schedule has shown it"


@pytest.mark.long
def test_without_a_fault_all_is_right(tmp_path: Path, gpu: EmulatedProduct) -> None:
    library = faulty_library("none", tmp_path)
    assert all(is_right(library, gpu, *case, seed) for seed in range(1, 6) for case in CASES)
