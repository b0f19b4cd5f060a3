"""The CUDA kernels of the portable product, emulated on a CPU: the bits of the CPU's own."""

import ctypes

import pytest
import torch

from tests.kernels.portable_cases import DTYPES, assert_same
from tests.kernels.product.emulated_product import EmulatedProduct, TensorCores
from tests.kernels.product.portable_product_cases import CASES, Case, bell
from tests.kernels.product.test_portable_product import exponents_for
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    pack_weight,
    portable_product,
    sum_partials,
    unpack_weight,
)

pytestmark = pytest.mark.some(1)

BY_WARP = (TensorCores.INT8, TensorCores.BFLOAT16)
"""What a warp can multiply with, for any number of rows."""


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedProduct:
    return EmulatedProduct.compile(tmp_path_factory.mktemp("emulated_product"))


def packed_for_both(case: Case, gpu: EmulatedProduct) -> tuple[PackedWeight, PackedWeight]:
    """The weight in the CPU's layout and in the GPU's."""
    weight = case.make_weight()
    exponents = exponents_for(weight, case)
    on_cpu = pack_weight(weight, exponents)
    on_gpu, refused = gpu.pack(weight, exponents, on_cpu.segments)
    assert refused == -1
    return on_cpu, on_gpu


# --- products ------------------------------------------------------------------------------------
@pytest.mark.some(1)
@pytest.mark.parametrize("cores", BY_WARP)
@pytest.mark.parametrize("splits", [0, 1, 8])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits(case: Case, splits: int, cores: TensorCores, gpu: EmulatedProduct) -> None:
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x, bias = case.make_x(), case.make_bias()
    found = gpu.product(x, on_gpu, bias, cores=cores, splits=splits)
    assert_same(found, portable_product(x, on_cpu, bias))


LARGEST = {"rows": (32385, -32385, 32511), "weight": (32384, -32385, 32511)}
"""Integers of digits 127 and -128, or -127 where ties are broken; -127 and 127; 127 and -1."""


def largest_digits(count: int, inputs: int, integers: tuple[int, ...]) -> torch.Tensor:
    """float32 [count, inputs]: each integer, of one sign, alternate signs, or signs by halves."""
    channels = torch.arange(inputs)
    signs = torch.stack([channels * 0, channels % 2, channels // 128 % 2]) * -2 + 1
    kinds = torch.cat([signs * integer for integer in integers]).float()
    return kinds.repeat(-(-count // len(kinds)), 1)[:count].contiguous()


@pytest.mark.some(1)
@pytest.mark.parametrize("cores", TensorCores)
@pytest.mark.parametrize("rows", [5, 13, 27, 60, 90])
@pytest.mark.parametrize("inputs", [256, 2048, 4097])
def test_largest_digits(inputs: int, rows: int, cores: TensorCores, gpu: EmulatedProduct) -> None:
    """Whole blocks of digits that come close to what the sums of a block can be."""
    x = largest_digits(rows, inputs, LARGEST["rows"])
    weight = largest_digits(18, inputs, LARGEST["weight"])
    on_cpu = pack_weight(weight)
    on_gpu, _ = gpu.pack(weight, None, on_cpu.segments)
    assert_same(gpu.product(x, on_gpu, cores=cores), portable_product(x, on_cpu))


@pytest.mark.parametrize("cores", BY_WARP)
def test_every_number_of_rows(cores: TensorCores, gpu: EmulatedProduct) -> None:
    """All tiles, whole and in part."""
    case = Case(100, 35, 296, kind="outliers", has_bias=True)
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x, bias = case.make_x(), case.make_bias()
    whole = portable_product(x, on_cpu, bias)
    for rows in range(1, len(x) + 1):
        assert_same(gpu.product(x[:rows], on_gpu, bias, cores=cores), whole[:rows])


@pytest.mark.some(1)
@pytest.mark.parametrize("cores", BY_WARP)
@pytest.mark.parametrize("rows", [3, 12, 20, 50, 140])
@pytest.mark.parametrize("outputs", [16, 65, 129, 260])
def test_numbers_of_outputs(
    rows: int, outputs: int, cores: TensorCores, gpu: EmulatedProduct
) -> None:
    """One tile or several, with panels that the last one lacks."""
    case = Case(rows, outputs, 328)
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x = case.make_x()
    assert_same(gpu.product(x, on_gpu, cores=cores), portable_product(x, on_cpu))


@pytest.mark.parametrize("cores", BY_WARP)
@pytest.mark.parametrize("rows", [1536, 1537, 1700])
def test_more_rows_than_at_once(rows: int, cores: TensorCores, gpu: EmulatedProduct) -> None:
    case = Case(rows, 20, 32, has_bias=True)
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x, bias = case.make_x(), case.make_bias()
    assert_same(gpu.product(x, on_gpu, bias, cores=cores), portable_product(x, on_cpu, bias))


@pytest.mark.some(1)
@pytest.mark.parametrize("cores", BY_WARP)
@pytest.mark.parametrize("rows", [2, 9, 30, 33, 70])
@pytest.mark.parametrize("inputs", [521, 1034, 1060, 2600])
def test_segments_split_between_blocks_of_threads(
    rows: int, inputs: int, cores: TensorCores, gpu: EmulatedProduct
) -> None:
    """One to eight segments of two blocks or more, each in every number of parts."""
    case = Case(rows, 40, inputs, kind="outliers", has_bias=True)
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x, bias = case.make_x(), case.make_bias()
    expected = portable_product(x, on_cpu, bias)
    for splits in (1, 2, 4, 8):
        assert_same(gpu.product(x, on_gpu, bias, cores=cores, splits=splits), expected)


@pytest.mark.parametrize("processors", [1, 3, 200])
def test_numbers_of_multiprocessors(processors: int, gpu: EmulatedProduct) -> None:
    """Blocks of threads that compute several tiles, or more blocks than there are tiles."""
    case = Case(75, 300, 520, kind="outliers", has_bias=True)
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x, bias = case.make_x(), case.make_bias()
    expected = portable_product(x, on_cpu, bias)
    for rows in (5, 75):
        found = gpu.product(x[:rows], on_gpu, bias, processors=processors)
        assert_same(found, expected[:rows])


@pytest.mark.parametrize("cores", BY_WARP)
@pytest.mark.parametrize("rows", [4, 66])
def test_orders_of_threads(rows: int, cores: TensorCores, gpu: EmulatedProduct) -> None:
    case = Case(rows, 70, 1040, kind="outliers")
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x = case.make_x()
    expected = portable_product(x, on_cpu)
    for seed in range(2, 7):
        assert_same(gpu.product(x, on_gpu, cores=cores, splits=2, seed=seed), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_of_the_result(dtype: torch.dtype, gpu: EmulatedProduct) -> None:
    case = Case(14, 23, 520, "float32", "float32", "wild", has_bias=True)
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x, bias = case.make_x(), case.make_bias()
    for splits in (1, 4):
        found = gpu.product(x, on_gpu, bias, dtype, splits=splits)
        assert_same(found, portable_product(x, on_cpu, bias, dtype))


def test_rows_that_lie_apart(gpu: EmulatedProduct) -> None:
    """Also where eight channels are at no multiple of 16 bytes."""
    case = Case(6, 20, 400)
    on_cpu, on_gpu = packed_for_both(case, gpu)
    x = case.make_x()
    expected = portable_product(x, on_cpu)
    for before in (8, 3):
        wide = torch.full((len(x), x.shape[1] + 24), torch.nan, dtype=x.dtype)
        part = wide[:, before : before + x.shape[1]]
        part.copy_(x)
        assert_same(gpu.product(part, on_gpu), expected)


def test_no_rows(gpu: EmulatedProduct) -> None:
    on_gpu, _ = gpu.pack(bell(5, 64, 1), None, 8)
    assert gpu.product(torch.zeros(0, 64), on_gpu).shape == (0, 5)


def test_parts_of_a_layer(gpu: EmulatedProduct) -> None:
    """Each rank has some of the segments; the bits are those of one rank."""
    case = Case(11, 35, 1000, kind="outliers", has_bias=True)
    x, weight, bias = case.make_x(), case.make_weight(), case.make_bias()
    x[3, 5] = torch.inf  # a row that only one rank knows to be lost
    whole = pack_weight(weight)
    for parts in (1, 2, 4, 8):
        columns = torch.arange(1000).chunk(parts)
        packed = [gpu.pack(weight[:, own].contiguous(), None, 8 // parts)[0] for own in columns]
        partials = torch.stack(
            [
                gpu.product(x[:, own], part, dtype=torch.float32)
                for own, part in zip(columns, packed, strict=True)
            ]
        )
        for dtype in DTYPES:
            found = gpu.sum(partials, bias, dtype)
            assert_same(found, sum_partials(partials, bias, dtype))
            assert_same(found, portable_product(x, whole, bias, dtype))


# --- which tensor cores --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("major", "has_warpgroups", "asked", "chosen"),
    [
        (8, False, "", TensorCores.INT8),
        (9, True, "", TensorCores.INT8_WARPGROUPS),
        (9, False, "", TensorCores.INT8),
        (10, False, "", TensorCores.BFLOAT16),
        (12, False, "", TensorCores.INT8),
        (8, False, "bfloat16", TensorCores.BFLOAT16),
        (9, True, "bfloat16", TensorCores.BFLOAT16),
        (9, True, "int8", TensorCores.INT8_WARPGROUPS),
        (9, False, "int8", TensorCores.INT8),
        (9, True, "mma", TensorCores.INT8),
        (10, False, "mma", TensorCores.INT8),
        (10, False, "int8", TensorCores.INT8),
    ],
)
def test_the_choice_of_tensor_cores(
    major: int, has_warpgroups: bool, asked: str, chosen: TensorCores, gpu: EmulatedProduct
) -> None:
    assert gpu.tensor_cores(major, has_warpgroups, asked) is chosen


@pytest.mark.parametrize(("most_threads", "has"), [(384, True), (1024, True), (1, False)])
def test_what_the_library_says_of_warpgroups(
    most_threads: int, has: bool, gpu: EmulatedProduct
) -> None:
    """Code that was not compiled for sm_90a can be launched with one thread; see
    test_cuda_product_code.py."""
    assert bool(gpu.library.has_warpgroups(ctypes.c_int64(most_threads))) is has


@pytest.mark.parametrize("asked", ["bf16", "INT8", " int8", "0"])
def test_tensor_cores_that_are_no_choice(asked: str, gpu: EmulatedProduct) -> None:
    sentence = (
        f"VLLM_FORK_CUDA_TENSOR_CORES={asked} is not a kind of product that GPUs make of digits: "
        "set int8, mma or bfloat16, or leave it unset for what suits the GPU."
    )
    for major in (8, 9, 10, 12):
        with pytest.raises(RuntimeError) as error:
            gpu.tensor_cores(major, major == 9, asked)
        assert str(error.value) == sentence


# --- weights -------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES, ids=str)
def test_packing_and_unpacking(case: Case, gpu: EmulatedProduct) -> None:
    on_cpu, on_gpu = packed_for_both(case, gpu)
    assert_same(gpu.unpack(on_gpu), unpack_weight(on_cpu))


def test_size_of_a_packed_weight(gpu: EmulatedProduct) -> None:
    """16 bits a number, and a byte for each block of an output."""
    assert gpu.library.packed_bytes(4096, 4096, 8) == 4096 * 4096 * 2 + 4096 * 16


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 32512.0 * 2.0**30])
def test_weights_out_of_range_are_refused(number: float, gpu: EmulatedProduct) -> None:
    weight = bell(40, 300, 1)
    weight[33, 270] = weight[37, 5] = number
    assert gpu.pack(weight, None, 4)[1] == 33
    weight[33, 270] = weight[37, 5] = 32512.0 * 2.0**30 * (1 - 2.0**-24)
    assert gpu.pack(weight, None, 4)[1] == -1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(30, 200), (700, 3), (1, 1500)])
def test_statistics(shape: tuple[int, int], dtype: torch.dtype, gpu: EmulatedProduct) -> None:
    weight = (bell(*shape, 3) * bell(1, shape[1], 4) ** 5).to(dtype)
    statistics = gpu.statistics(weight)
    assert torch.equal(statistics, channel_statistics(weight))
