"""CUDA kernels that make digits of what they compute, on a CPU: the product's bits stay."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests.emulated_gpu.library import NAMESPACE
from tests.kernels.other_operators import operators_of
from tests.kernels.portable_cases import DTYPES, assert_same, numbers
from tests.kernels.product.portable_product_cases import bell, wild_rows
from vllm.fork_kernels.portable import prepared_digits
from vllm.fork_kernels.portable.functions import Function, portable_gated, portable_map
from vllm.fork_kernels.portable.norm import portable_layer_norm, portable_rms_norm
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)

Source = Callable[[torch.Tensor, PackedWeight | None], torch.Tensor]

OUTPUTS = 24
SIZES = {
    "heads": 64,
    "less than a segment's block": 1016,
    "a warp's row": 1024,
    "blocks that end early": 2360,
    "whole blocks": 4096,
    "one segment of odd blocks": 1031,
}


@pytest.fixture(autouse=True)
def emulated(emulated_library: Path) -> Any:
    """The ops on the CPU are those of CUDA."""
    with (
        operators_of(NAMESPACE),
        mock.patch.object(prepared_digits, "has_digits", return_value=True),
    ):
        yield


def packed(size: int, seed: int = 3) -> PackedWeight:
    weight = numbers(OUTPUTS, size, seed=seed, dtype=torch.bfloat16)
    return pack_weight(weight, equalising_exponents(channel_statistics(weight)))


def assert_fused(source: Source, x: torch.Tensor, size: int) -> None:
    """The source's results, and their products, are those without digits; digits were taken."""
    weight = packed(size)
    expected = source(x.clone(), None)
    result = source(x.clone(), weight)
    assert_same(result, expected)
    assert prepared_digits.of(expected, weight) is None
    assert prepared_digits.of(result, weight) is not None
    assert prepared_digits.of(result, replace(weight)) is None
    products = portable_product(expected, weight, dtype=torch.float32)
    for _ in range(2):  # the digits stay
        assert_same(portable_product(result, weight, dtype=torch.float32), products)
    bias = numbers(OUTPUTS, seed=9)
    assert_same(portable_product(result, weight, bias), portable_product(expected, weight, bias))


@pytest.mark.some(9)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_rms_norm(size: int, dtype: torch.dtype) -> None:
    residuals = []

    def source(x: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        residuals.append(bell(3, size, seed=2).to(dtype))
        weight = numbers(size, seed=4, dtype=dtype)
        return portable_rms_norm(x, weight, residual=residuals[-1], consumer=consumer)

    assert_fused(source, bell(3, size, seed=1).to(dtype), size)
    assert_same(residuals[0], residuals[1])


@pytest.mark.parametrize("rows", [1, 9, 33, 70])
def test_numbers_of_rows(rows: int) -> None:
    """Each has tiles of its own."""

    def source(x: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        return portable_layer_norm(x, consumer=consumer)

    assert_fused(source, wild_rows(rows, 1288, torch.bfloat16, seed=5).bfloat16(), 1288)


@pytest.mark.parametrize("function", Function)
def test_functions(function: Function) -> None:
    def source(x: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        return portable_map(x, function, consumer)

    assert_fused(source, numbers(2, 3, 1031, seed=1, dtype=torch.bfloat16, scale=4.0), 1031)


def test_channels_that_a_block_lacks_do_not_count() -> None:
    """They would be 1, the exponential of 0, and the largest number of the block."""

    def source(x: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        return portable_map(x, Function.EXP, consumer)

    assert_fused(source, numbers(2, 1031, seed=1) - 9.0, 1031)


@pytest.mark.some(9)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_gated(size: int, dtype: torch.dtype) -> None:
    def source(x: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        return portable_gated(x, Function.SILU, consumer)

    assert_fused(source, numbers(5, 2 * size, seed=1, dtype=dtype, scale=4.0), size)


def test_what_is_out_of_range_is_not_a_number() -> None:
    def source(x: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        return portable_map(x, Function.RELU, consumer)

    x = numbers(4, 512, seed=1)
    x[0, 3], x[1, 400], x[2, 0] = torch.inf, torch.nan, 2.0**100
    assert_fused(source, x, 512)
    product = portable_product(source(x, packed(512)), packed(512))
    assert product.isnan().any(dim=1).tolist() == [True, True, True, False]


def test_digits_of_what_has_changed_are_not_taken() -> None:
    """As by a hook of a module."""
    weight = packed(64)
    result = portable_map(numbers(3, 64, seed=1), Function.RELU, weight)
    result[1].mul_(2.0)
    assert prepared_digits.of(result, weight) is None
    assert_same(portable_product(result, weight), portable_product(result.clone(), weight))


@pytest.mark.parametrize("rows", [0, 1537])
def test_rows_that_make_no_digits(rows: int) -> None:
    weight = packed(64)
    result = portable_map(numbers(rows, 64, seed=1), Function.RELU, weight)
    assert prepared_digits.of(result, weight) is None


def test_another_number_of_channels_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"must have 64 input channels.* but has 128"):
        portable_map(numbers(2, 64, seed=1), Function.RELU, packed(128))


BAD = {
    "segments": {"segments": 3, "error": "segments must be 1, 2, 4 or 8"},
    "exponents": {"exponents": torch.zeros(63, dtype=torch.int8), "error": "63"},
    "outputs": {"outputs": 0, "error": "outputs must be above 0"},
    "rows": {"rows": 1537, "error": "rows must be in 1..1536, but are 1537"},
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_arguments_of_digits(case: dict[str, Any]) -> None:
    x = numbers(case.get("rows", 2), 64, seed=1)
    arguments = (case.get("exponents"), case.get("outputs", OUTPUTS), case.get("segments", 8))
    with pytest.raises(RuntimeError, match=rf"portable_map_digits: .*{case['error']}"):
        torch.ops.vllm_fork.portable_map_digits(x, "relu", *arguments)


def product_of_digits(digits: torch.Tensor, packed: torch.Tensor, segments: int) -> torch.Tensor:
    return torch.ops.vllm_fork.portable_digits_product(
        digits, packed, None, 2, OUTPUTS, 64, segments, torch.float32
    )


def moved(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """Return the same bytes, `by` bytes behind a multiple of 64."""
    memory = torch.zeros(len(tensor) + 128, dtype=torch.uint8)
    start = -memory.data_ptr() % 64 + by
    memory[start : start + len(tensor)] = tensor
    return memory[start : start + len(tensor)]


def test_what_does_not_start_where_it_must_is_refused() -> None:
    """The kernels copy 16 bytes at once; a packed weight has the CPU's 64 on GPUs, too."""
    weight = packed(64)
    rows = portable_map(numbers(2, 64, seed=1), Function.RELU, weight)
    digits = prepared_digits.of(rows, weight)
    assert digits is not None
    expected = product_of_digits(digits, weight.packed, weight.segments)
    for by in (16, 48, 64):
        found = product_of_digits(moved(digits, by), weight.packed, weight.segments)
        assert_same(found, expected)
    for by in (1, 8):
        sentence = r"^portable_digits_product: digits must start at a multiple of 16 bytes\.$"
        with pytest.raises(RuntimeError, match=sentence):
            product_of_digits(moved(digits, by), weight.packed, weight.segments)
    for by in (1, 8, 16, 32):
        sentence = r": packed must start at a multiple of 64 bytes\.$"
        elsewhere = replace(weight, packed=moved(weight.packed, by))
        with pytest.raises(RuntimeError, match="^portable_digits_product" + sentence):
            product_of_digits(digits, elsewhere.packed, weight.segments)
        with pytest.raises(RuntimeError, match="^portable_product" + sentence):
            portable_product(numbers(2, 64, seed=1), elsewhere)


def test_digits_of_other_rows_are_refused() -> None:
    weight = packed(64)
    digits = prepared_digits.of(portable_map(numbers(2, 64, seed=1), Function.RELU, weight), weight)
    with pytest.raises(RuntimeError, match="portable_digits_product: digits must have one entry"):
        torch.ops.vllm_fork.portable_digits_product(
            digits, weight.packed, None, 9, OUTPUTS, 64, weight.segments, torch.float32
        )
