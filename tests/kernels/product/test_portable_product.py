"""The portable product has the bits of its specification, whatever computes it and how.

Tests with "instruction_set" in their name run once more for every one that the CPU has, from
test_cpu_isa.py. Expected digests hold every machine and every later change to the same bits.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.portable_cases import assert_same, bits, every_number, integers
from tests.kernels.product import portable_product_reference as reference
from tests.kernels.product.portable_product_cases import CASES, DTYPES, Case, bell, wild_rows
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
    sum_partials,
    unpack_weight,
)

pytestmark = pytest.mark.fast

# sha256 of the bits, all cases of one after another.
WEIGHT_DIGEST = "80ee85a93736a000ecf71f0a0515264ae5cfd57c758db707b1598920ae820202"
PRODUCT_DIGEST = "0bd40d14b62bf63730b95ec79a2b4778d177ddff5c0afdac580fbdbcffb04ead"


def exponents_for(weight: torch.Tensor, case: Case) -> torch.Tensor | None:
    return equalising_exponents(channel_statistics(weight)) if case.is_equalised else None


def packed_weight(case: Case) -> PackedWeight:
    weight = case.make_weight()
    return pack_weight(weight, exponents_for(weight, case))


def product(case: Case, dtype: torch.dtype | None = None) -> torch.Tensor:
    return portable_product(case.make_x(), packed_weight(case), case.make_bias(), dtype)


def expected_product(case: Case, dtype: str) -> torch.Tensor:
    """What the reference computes."""
    weight = case.make_weight().float().numpy()
    exponents = np.zeros(case.inputs, dtype=np.int64)
    if case.is_equalised:
        exponents = reference.exponents_of(reference.statistics_of(weight))
    bias = case.make_bias()
    widened = None if bias is None else bias.float().numpy()
    x = case.make_x().float().numpy()
    return as_tensor(reference.product_bits(x, weight, exponents, widened, dtype), dtype)


def as_tensor(bits: np.ndarray, dtype: str) -> torch.Tensor:
    """Numbers from their bits."""
    signed = bits.view(np.int32 if dtype == "float32" else np.int16)
    return torch.from_numpy(signed.copy()).view(DTYPES[dtype])


# --- bits ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_of_the_specification_with_this_instruction_set(case: Case) -> None:
    assert_same(product(case), expected_product(case, case.x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_result(dtype: str) -> None:
    case = Case(14, 23, 520, "float32", "float32", "wild", has_bias=True)
    assert_same(product(case, DTYPES[dtype]), expected_product(case, dtype))


def test_digests_with_this_instruction_set() -> None:
    """Committed bits: they must not change, or every answer of deterministic mode would."""
    cases = (*CASES, Case(70, 100, 1000, kind="outliers"), Case(3, 200, 4096, kind="outliers"))
    weights, products = hashlib.sha256(), hashlib.sha256()
    for case in cases:
        weights.update(bits(unpack_weight(packed_weight(case))).numpy().tobytes())
        products.update(bits(product(case)).numpy().tobytes())
    assert weights.hexdigest() == WEIGHT_DIGEST
    assert products.hexdigest() == PRODUCT_DIGEST


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, PackedWeight, torch.Tensor]:
    """Rows, a weight, and their product in bits that the specification gives."""
    case = Case(70, 100, 1000, kind="outliers")
    x, weight = case.make_x(), packed_weight(case)
    whole = portable_product(x, weight)
    some = dataclasses.replace(case, outputs=9)
    assert_same(portable_product(x, packed_weight(some)), expected_product(some, "bfloat16"))
    return x, weight, whole


Batch = tuple[torch.Tensor, PackedWeight, torch.Tensor]


def test_every_number_of_rows_with_this_instruction_set(batch: Batch) -> None:
    x, weight, whole = batch
    for rows in range(1, len(x) + 1):
        assert_same(portable_product(x[:rows], weight), whole[:rows])
        assert_same(portable_product(x[-rows:], weight), whole[-rows:])


def test_rows_in_another_order(batch: Batch) -> None:
    x, weight, whole = batch
    order = torch.from_numpy(np.argsort(integers(len(x), 3)))
    assert_same(portable_product(x[order], weight), whole[order])


def test_rows_that_lie_apart(batch: Batch) -> None:
    x, weight, whole = batch
    wide = torch.full((len(x), x.shape[1] + 24), torch.nan, dtype=x.dtype)
    wide[:, 8:-16] = x
    assert_same(portable_product(wide[:, 8:-16], weight), whole)


def test_no_rows(batch: Batch) -> None:
    x, weight, whole = batch
    assert_same(portable_product(x[:0], weight), whole[:0])


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "outputs"), [(1, 700), (70, 100), (1001, 40)])
def test_every_number_of_threads_with_this_instruction_set(
    threads: Callable[[int], None], rows: int, outputs: int
) -> None:
    """Also more rows than are multiplied at once."""
    case = Case(rows, outputs, 1000, kind="outliers")
    x, weight = case.make_x(), packed_weight(case)
    threads(1)
    alone = portable_product(x, weight)
    assert_same(torch.cat([portable_product(part, weight) for part in x.split(96)]), alone)
    for count in (2, 3):
        threads(count)
        assert_same(portable_product(x, weight), alone)
        assert torch.equal(packed_weight(case).packed, weight.packed)


def test_columns_of_the_weight_split_between_ranks() -> None:
    case = Case(5, 60, 520, kind="outliers", has_bias=True)
    weight, bias = case.make_weight(), case.make_bias()
    assert bias is not None
    halves = weight[:23].contiguous(), weight[23:].contiguous()
    statistics = torch.stack([channel_statistics(half) for half in halves]).sum(0)
    assert torch.equal(statistics, channel_statistics(weight))
    exponents = equalising_exponents(statistics)
    parts = [
        portable_product(case.make_x(), pack_weight(half, exponents), part.contiguous())
        for half, part in zip(halves, (bias[:23], bias[23:]), strict=True)
    ]
    assert_same(torch.cat(parts, dim=1), product(case))


@pytest.mark.parametrize("inputs", [64, 1000, 2304])
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_rows_of_the_weight_split_between_ranks_with_this_instruction_set(
    inputs: int, parts: int
) -> None:
    """Each rank has some of the segments; the bits are those of one rank."""
    case = Case(11, 35, inputs, kind="outliers", has_bias=True)
    x, weight, bias = case.make_x(), case.make_weight(), case.make_bias()
    x[3, 5] = torch.inf  # a row that only one rank knows to be lost
    statistics = [channel_statistics(part.contiguous()) for part in weight.chunk(parts, 1)]
    exponents = equalising_exponents(torch.cat(statistics))
    partials = []
    for columns, own in zip(torch.arange(inputs).chunk(parts), exponents.chunk(parts), strict=True):
        part = pack_weight(weight[:, columns].contiguous(), own.contiguous(), parts=parts)
        partials.append(portable_product(x[:, columns], part, dtype=torch.float32))
    for dtype in DTYPES.values():
        whole = portable_product(x, pack_weight(weight, exponents), bias, dtype)
        assert_same(sum_partials(torch.stack(partials), bias, dtype), whole)


def test_flushing_subnormals_changes_nothing() -> None:
    case = Case(14, 40, 1000, "float32", "float32", "wild", has_bias=True)
    expected = product(case)
    assert torch.set_flush_denormal(True)
    try:
        found = product(case)
    finally:
        torch.set_flush_denormal(False)
    assert_same(found, expected)


def test_lost_rows_leave_the_others_alone() -> None:
    case = Case(9, 21, 264, "float32", "float32", "lawless", is_equalised=False)
    found = product(case)
    assert found.isnan().all(1).tolist() == [True] * 6 + [False] * 3
    assert found[6:].isfinite().all()
    x = case.make_x()
    assert_same(portable_product(x[7:], packed_weight(case)), found[7:])


# --- numbers in and out --------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_of_results(dtype: str) -> None:
    """Every kind of float32 that a sum can be, and all that lie next to a tie."""
    ties = (np.arange(0x10000, dtype=np.uint32) << 16) | 0x8000
    halves = np.arange(0x38000, 0x48000, dtype=np.uint32) << 12
    words = np.concatenate([ties - 1, ties, ties + 1, halves, halves + 1, halves - 1])
    sums = np.concatenate([words.view(np.float32), every_number(torch.float32).numpy()])
    expected = as_tensor(reference.rounded_bits(sums, dtype), dtype)
    found = sum_partials(torch.from_numpy(sums).view(1, 1, -1), None, DTYPES[dtype])
    assert_same(found[0], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_number_of_16_bits(dtype: torch.dtype) -> None:
    """As a bias on a sum of zero."""
    numbers = every_number(dtype)
    found = sum_partials(torch.zeros(1, 1, 2**16), numbers)[0]
    expected = numbers.float()
    expected[expected.abs() < 2.0**-103] = 0.0
    expected[expected == 0.0] = 0.0
    expected[expected.isnan()] = torch.nan
    assert_same(found, expected)


def test_unpacked_weight() -> None:
    """Off by half a unit at most, and not at all where 15 bits hold a block's numbers."""
    case = Case(1, 40, 1000)
    weight = case.make_weight().float()
    unpacked = unpack_weight(packed_weight(case))
    assert not torch.equal(unpacked, weight)
    for part in (slice(s, s + 125) for s in range(0, 1000, 125)):
        largest = weight[:, part].abs().amax(1, keepdim=True)
        exact = unpack_weight(pack_weight(weight)).double()[:, part] - weight[:, part]
        assert (exact.abs() <= largest * 2.0**-14.9).all()
    coarse = (bell(20, 300, 2) * 64).round() / 64
    assert torch.equal(unpack_weight(pack_weight(coarse)), coarse)


@pytest.mark.parametrize("kind", ["plain", "wild"])
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_statistics_and_exponents(kind: str, weight_dtype: str) -> None:
    weight = Case(1, 30, 200, weight=weight_dtype, kind=kind).make_weight()
    statistics = channel_statistics(weight)
    expected = reference.statistics_of(weight.float().numpy())
    np.testing.assert_array_equal(statistics.numpy(), expected)
    exponents = equalising_exponents(statistics)
    np.testing.assert_array_equal(exponents.numpy(), reference.exponents_of(expected))
    if kind == "plain":
        assert len(exponents.unique()) > 4


def test_extreme_statistics() -> None:
    for values in ([0, 0], [0, 5, 0], [1, 2**62, 2**62], [2**62, 1, 1], [1, 2, 3, 8, 9, 32, 33]):
        statistics = np.array(values, dtype=np.int64)
        found = equalising_exponents(torch.from_numpy(statistics))
        np.testing.assert_array_equal(found.numpy(), reference.exponents_of(statistics))


# --- accuracy ------------------------------------------------------------------------------------
def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("kind", "is_equalised", "bound"),
    [("plain", False, 1.4e-4), ("plain", True, 1.4e-4), ("outliers", True, 3.0e-4)],
)
def test_accuracy(kind: str, is_equalised: bool, bound: float) -> None:
    """The measured errors of the specification; outliers are undone by the weight."""
    x, weight = bell(32, 4096, 1), bell(128, 4096, 2) * 0.02
    if kind == "outliers":
        channels = torch.arange(100, 4096, 500)
        x[:, channels] *= 512
        weight[:, channels] /= 512
    x, weight = x.bfloat16(), weight.bfloat16()
    exponents = equalising_exponents(channel_statistics(weight)) if is_equalised else None
    found = portable_product(x, pack_weight(weight, exponents), dtype=torch.float32)
    assert relative_error(found, x.double() @ weight.double().T) < bound


def test_error_bound() -> None:
    """Section 9's bound, for numbers whose magnitudes differ as much as they can."""
    x = wild_rows(14, 2048, torch.float32, 1).clamp(-(2.0**50), 2.0**50)
    x[x.abs() < 2.0**-60] = 0.0
    weight = bell(40, 2048, 3) * powers_of_ten(40, 2048)
    found = portable_product(x, pack_weight(weight), dtype=torch.float32)
    error = (found.double() - x.double() @ weight.double().T).abs()
    bound = torch.zeros_like(error)
    for part in (slice(s, s + 256) for s in range(0, 2048, 256)):
        largest = x[:, part].abs().amax(1).double(), weight[:, part].abs().amax(1).double()
        bound += 256 * torch.outer(*largest) * (2.0**-11 + 20 * 2.0**-24)
    assert (error <= bound).all()


def powers_of_ten(rows: int, columns: int) -> torch.Tensor:
    exponents = integers(rows * columns, 8) % 6
    return torch.from_numpy(10.0 ** -exponents.astype(np.float64)).float().view(rows, columns)


# --- refusals ------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 32512.0 * 2.0**30])
def test_weights_out_of_range_are_refused(number: float) -> None:
    weight = bell(40, 300, 1)
    weight[33, 270] = number
    with pytest.raises(RuntimeError, match=r"^pack_weight: weight\[33\] has a number that is not"):
        pack_weight(weight)
    weight[33, 270] = 32512.0 * 2.0**30 * (1 - 2.0**-24)
    pack_weight(weight)


@pytest.mark.parametrize("parts", [-1, 0, 3, 6, 16])
def test_parts_that_are_not_segments_are_refused(parts: int) -> None:
    with pytest.raises(ValueError, match="cannot be split into"):
        pack_weight(torch.zeros(4, 8), parts=parts)


@pytest.mark.parametrize(
    ("inputs", "parts", "segments"), [(3, 1, 1), (3, 2, 1), (3, 8, 1), (4, 2, 4)]
)
def test_segments(inputs: int, parts: int, segments: int) -> None:
    assert pack_weight(torch.zeros(4, inputs), parts=parts).segments == segments


PRODUCT_ERRORS = [
    ({"x": torch.zeros(2, 32).double()}, "x must have dtype float32, bfloat16 or float16, but has"),
    ({"x": torch.zeros(32, 2).t()}, "the last dimension of x must be contiguous, but has stride"),
    ({"x": torch.zeros(32)}, r"x must have 2 dimension\(s\), but has 1."),
    ({"x": torch.zeros(2, 31)}, "x must have 32 columns, as the weight has, but has 31."),
    ({"bias": torch.zeros(5)}, "bias must have one entry for each of the 6 outputs, but has 5."),
    ({"bias": torch.zeros(6).double()}, "bias must have dtype float32, bfloat16 or float16, but"),
    ({"dtype": torch.int32}, "dtype must be float32, bfloat16 or float16, but is int32."),
]
WEIGHT_ERRORS = [
    ({"packed": torch.zeros(64)}, "packed must have dtype uint8, but has float32."),
    ({"packed": torch.zeros(64, dtype=torch.uint8)}, "packed must have one entry for each of the"),
    ({"segments": 3}, "segments must be 1, 2, 4 or 8, but is 3."),
    ({"out_features": 0}, "outputs must be above 0, but is 0."),
    ({"exponents": torch.zeros(31, dtype=torch.int8)}, "exponents must have one entry for each of"),
    ({"exponents": torch.zeros(32)}, "exponents must have dtype int8, but has float32."),
]
PACK_ERRORS = [
    ((torch.zeros(4, 8).int(), None), "weight must have dtype float32, bfloat16 or float16, but"),
    ((torch.zeros(8, 4).t(), None), "weight must be contiguous."),
    ((torch.zeros(0, 8), None), "weight must not be empty, but is 0 x 8."),
    ((torch.zeros(1, 131080), None), "the number of input channels must be in 1..131072, but is"),
    (
        (torch.zeros(4, 8), torch.full((8,), 17, dtype=torch.int8)),
        r"exponents\[0\] must be in -16..16, but is 17.",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), PRODUCT_ERRORS)
def test_argument_errors(change: dict[str, Any], sentence: str) -> None:
    weight = pack_weight(torch.zeros(6, 32))
    arguments: dict[str, Any] = {"x": torch.zeros(2, 32), "weight": weight} | change
    with pytest.raises(RuntimeError, match=f"^portable_product: {sentence}"):
        portable_product(**arguments)


@pytest.mark.parametrize(("change", "sentence"), WEIGHT_ERRORS)
def test_errors_in_a_packed_weight(change: dict[str, Any], sentence: str) -> None:
    weight = dataclasses.replace(pack_weight(torch.zeros(6, 32)), **change)
    with pytest.raises(RuntimeError, match=f"^portable_product: {sentence}"):
        portable_product(torch.zeros(2, 32), weight)


def test_a_packed_weight_that_is_not_aligned() -> None:
    weight = pack_weight(torch.zeros(6, 32))
    moved = torch.cat([weight.packed[:16], weight.packed])[16:]
    with pytest.raises(RuntimeError, match="packed must start at a multiple of 64 bytes"):
        portable_product(torch.zeros(2, 32), dataclasses.replace(weight, packed=moved))


@pytest.mark.parametrize(("arguments", "sentence"), PACK_ERRORS)
def test_packing_errors(arguments: tuple[Any, Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^pack_weight: {sentence}"):
        pack_weight(*arguments)


@pytest.mark.parametrize(
    ("partials", "sentence"),
    [
        (torch.zeros(2, 3), r"partials must have 3 dimension\(s\), but has 2."),
        (torch.zeros(3, 2, 2), "partials must be 1, 2, 4 or 8 sums, but are 3."),
        (torch.zeros(2, 2, 2).half(), "partials must have dtype float32, but has float16."),
    ],
)
def test_errors_in_partial_sums(partials: torch.Tensor, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^sum_partials: {sentence}"):
        sum_partials(partials)


# --- torch ---------------------------------------------------------------------------------------
def test_torch_compile() -> None:
    case = Case(6, 40, 264, has_bias=True)
    x, weight, bias = case.make_x(), packed_weight(case), case.make_bias()

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = portable_product(x * 2, weight, bias, torch.float32)
        return sum_partials(torch.stack([y, y]), None, torch.bfloat16)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    assert_same(compiled(x), layer(x))


def test_opcheck() -> None:
    case = Case(6, 40, 264, has_bias=True)
    weight = packed_weight(case)
    ops = torch.ops.vllm_fork
    layout = weight.out_features, weight.segments
    arguments = case.make_x(), weight.packed, weight.exponents, case.make_bias()
    torch.library.opcheck(ops.portable_product.default, (*arguments, *layout, torch.float16))
    torch.library.opcheck(ops.sum_partials.default, (torch.zeros(2, 3, 5), None, torch.bfloat16))
    statistics = channel_statistics(case.make_weight())
    torch.library.opcheck(ops.channel_statistics.default, (case.make_weight(),))
    torch.library.opcheck(ops.equalising_exponents.default, (statistics,))
    torch.library.opcheck(
        ops.unpack_weight.default, (weight.packed, weight.exponents, 40, 264, weight.segments)
    )
