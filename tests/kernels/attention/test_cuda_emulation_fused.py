"""CUDA kernels that do what several did, emulated on the CPU: the bits of the CPU's ops."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from tests.emulated_gpu.library import NAMESPACE
from tests.kernels.attention.portable_attention_cases import make_case
from tests.kernels.attention.test_cuda_emulation_attention import SINKS, SLOPES, Batch
from tests.kernels.other_operators import operators_of
from tests.kernels.portable_cases import DTYPES, assert_same, numbers
from vllm.fork_kernels import library
from vllm.fork_kernels.portable import prepared_digits
from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_attention,
    portable_rotate_append,
)
from vllm.fork_kernels.portable.product import pack_weight, portable_product
from vllm.fork_kernels.portable.rotary import rotary_frequencies, rotary_table

pytestmark = pytest.mark.usefixtures("emulated_library")

OUTPUTS = 24


@contextmanager
def emulated() -> Iterator[None]:
    """The ops on the CPU are those of CUDA."""
    with (
        operators_of(NAMESPACE),
        mock.patch.object(library, "has_kernel", return_value=True),
    ):
        yield


class Heads:
    """Queries, keys and values side by side in one tensor, as a layer computes them."""

    def __init__(
        self, heads: int, kv_heads: int, size: int, dtype: torch.dtype, tokens: int = 5
    ) -> None:
        self.qkv = numbers(tokens, heads + 2 * kv_heads, size, seed=1, dtype=dtype, scale=4.0)
        self.query, self.keys, self.values = self.qkv.split([heads, kv_heads, kv_heads], dim=1)
        shape = attention_cache_shape(3, kv_heads, size, 16)
        self.cache = torch.full(shape, 0xA5, dtype=torch.uint8)

    def rotated(self, rotary: int, slots: torch.Tensor, is_interleaved: bool) -> None:
        arguments = (self.query, self.keys, self.values, POSITIONS, table(rotary))
        portable_rotate_append(*arguments, self.cache, slots, is_interleaved=is_interleaved)

    def rotated_at_once(self, rotary: int, slots: torch.Tensor, is_interleaved: bool) -> None:
        arguments = (self.query, self.keys, self.values, POSITIONS, table(rotary))
        with emulated():
            portable_rotate_append(*arguments, self.cache, slots, is_interleaved=is_interleaved)


POSITIONS = torch.tensor([0, 7, 30, 31, 2])


def table(rotary: int) -> torch.Tensor:
    return rotary_table(rotary_frequencies(rotary), 32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "rotary"),
    [(32, 8, 128, 128), (3, 3, 16, 16), (4, 1, 80, 20), (5, 5, 256, 256), (2, 1, 96, 64)],
)
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_rotate_append(
    heads: int, kv_heads: int, size: int, rotary: int, is_interleaved: bool, dtype: torch.dtype
) -> None:
    """Also where a token has no slot, and one that fills a step up is behind the slots."""
    slots = torch.tensor([0, -1, 47, 31])
    apart, at_once = (Heads(heads, kv_heads, size, dtype) for _ in range(2))
    for one in (apart, at_once):
        one.values[2, 0, 1] = torch.nan
    apart.rotated(rotary, slots, is_interleaved)
    at_once.rotated_at_once(rotary, slots, is_interleaved)
    assert_same(at_once.qkv, apart.qkv)
    assert_same(at_once.cache, apart.cache)


def test_a_position_that_the_table_lacks() -> None:
    """Its heads become NaN, and its key one that is not valid."""
    slots = torch.arange(5)
    expected, found = (Heads(2, 1, 32, torch.bfloat16) for _ in range(2))
    expected.query[3], expected.keys[3] = torch.nan, torch.nan
    expected.rotated(32, slots, is_interleaved=False)
    with mock.patch(f"{__name__}.POSITIONS", torch.tensor([0, 7, 30, 32, 2])):
        found.rotated_at_once(32, slots, is_interleaved=False)
    assert found.query[3].isnan().all()
    assert found.keys[3].isnan().all()
    kept = [0, 1, 2, 4]
    assert_same(found.qkv[kept], expected.qkv[kept])
    assert_same(found.cache, expected.cache)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "positions": (
        {"positions": torch.zeros(4, dtype=torch.int64)},
        "positions must have one entry for each of the 5 rows of query, but has 4",
    ),
    "dtype": ({"keys": torch.zeros(5, 1, 32)}, "keys must have dtype bfloat16"),
    "table": ({"table": torch.zeros(9, 34)}, "at most the 32 of a head, but has 34"),
    "values": ({"values": torch.zeros(5, 2, 32)}, "values must have the shape of keys"),
    "slots": (
        {"slots": torch.zeros(6, dtype=torch.int64)},
        "slots must not have more entries than the 5 tokens of keys, but has 6",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_of_rotate_append(name: str) -> None:
    heads = Heads(2, 1, 32, torch.bfloat16)
    given: dict[str, Any] = {
        "query": heads.query,
        "keys": heads.keys,
        "values": heads.values,
        "positions": POSITIONS,
        "table": table(32),
        "cache": heads.cache,
        "slots": torch.arange(5),
    }
    changed, sentence = BAD[name]
    with emulated(), pytest.raises(RuntimeError, match=f"portable_rotate_append: .*{sentence}"):
        portable_rotate_append(**given | changed)


def assert_digits_agree(batch: Batch, seed: int = 3) -> None:
    """The CPU's results, into a tensor that is given, and the CPU's product of them."""
    expected = batch.expected()
    rows = expected.flatten(1)
    numbers_of_weight = numbers(OUTPUTS, rows.shape[1], seed=seed, dtype=torch.bfloat16)
    product = portable_product(rows, pack_weight(numbers_of_weight), dtype=torch.float32)
    with emulated():
        weight = pack_weight(numbers_of_weight)
        out = torch.full_like(expected, 7.0)
        result = portable_attention(*batch.arguments, **batch.variant, out=out, consumer=weight)
        assert result is out
        assert prepared_digits.of(out.flatten(1), weight) is not None
        found = portable_product(out.flatten(1), weight, dtype=torch.float32)
        assert_same(found, portable_product(out.flatten(1).clone(), weight, dtype=torch.float32))
    assert_same(out, expected)
    assert_same(found, product)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [(1100, 70), (70, 3)], ids=["in parts", "whole"])
def test_digits_of_an_8b_llama(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    cases = [make_case(n, 32, 8, 128, seed=n, dtype=dtype) for n in lengths]
    assert_digits_agree(Batch(cases, [1] * len(cases)))


@pytest.mark.parametrize("tokens", [1100, 90])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(3, 3, 16), (6, 2, 80), (1, 1, 144), (5, 1, 256), (4, 4, 32)]
)
def test_digits_of_heads_that_are_no_blocks(
    heads: int, kv_heads: int, size: int, tokens: int
) -> None:
    """Blocks of digits, and octets, begin within a head and end within another."""
    assert_digits_agree(Batch([make_case(tokens, heads, kv_heads, size)], [3]))


@pytest.mark.parametrize("variant", ["window", "soft cap", "alibi", "sinks"])
def test_digits_of_variants(variant: str) -> None:
    variants: dict[str, dict[str, Any]] = {
        "window": {"window": 70},
        "soft cap": {"soft_cap": 20.0},
        "alibi": {"slopes": SLOPES},
        "sinks": {"sinks": SINKS},
    }
    cases = [make_case(n, seed=n, **variants[variant]) for n in (2100, 1, 65, 1030)]
    assert_digits_agree(Batch(cases, [1] * 4, block_size=32))


def test_digits_of_a_result_that_is_no_number() -> None:
    cases = [make_case(n, seed=n) for n in (1100, 70)]
    cases[0].values[1050] = torch.inf
    batch = Batch(cases, [1, 2])
    assert_digits_agree(batch)
    assert batch.expected().isnan().flatten(1).any(dim=1).tolist() == [True, False, False]


def test_a_weight_for_other_rows_is_refused() -> None:
    batch = Batch([make_case(20)], [1])
    with emulated():
        weight = pack_weight(torch.ones(4, 24))
        with pytest.raises(RuntimeError, match="portable_attention: its consumer must have"):
            portable_attention(*batch.arguments, **batch.variant, consumer=weight)
