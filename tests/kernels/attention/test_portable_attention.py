"""Attention: the bits of the reference, of any chunks, blocks and batches, and its accuracy."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.attention import portable_attention_reference as reference
from tests.kernels.attention.portable_attention_cases import Case, PagedCases, attend, make_case
from tests.kernels.portable_cases import DTYPES, as_floats, assert_same, numbers, rounded
from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)

pytestmark = pytest.mark.fast

HEADS = 4
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 70},
    "window of one": {"window": 1},
    "soft cap": {"soft_cap": 20.0},
    "alibi": {"slopes": torch.tensor([0.5, 0.25, 0.0, 2.0**-8])},
    "sinks": {"sinks": torch.tensor([3.0, -80.0, 500.0, 0.0])},
    "all": {
        "window": 200,
        "soft_cap": 30.0,
        "slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]),
        "sinks": torch.tensor([3.0, -80.0, 500.0, 0.0]),
    },
}


def expected(case: Case, positions: list[int]) -> torch.Tensor:
    """The reference's results [positions, heads, size]."""
    heads, kv_heads = case.query.shape[1], case.keys.shape[1]
    variant = dict(case.variant)
    slopes = variant.pop("slopes", torch.zeros(heads)).tolist()
    sinks = variant.pop("sinks", torch.full((heads,), torch.nan)).tolist()
    result = np.empty((len(positions), heads, case.query.shape[2]), dtype=np.float32)
    for h in range(heads):
        own = h // (heads // kv_heads)
        head = reference.Head(
            reference.quantised(as_floats(case.keys[:, own])),
            reference.quantised(as_floats(case.values[:, own])),
            case.scale,
            slope=slopes[h],
            sink=sinks[h] if "sinks" in case.variant else None,
            **variant,
        )
        for i, position in enumerate(positions):
            result[i, h] = head.attend(as_floats(case.query[position, h]), position)
    return rounded(result, case.query.dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_of_the_reference(variant: str) -> None:
    case = make_case(300, **VARIANTS[variant])
    positions = [0, 1, 63, 64, 127, 200, 298, 299]
    assert_same(attend(case)[positions], expected(case, positions))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_reference_over_superblocks(dtype: torch.dtype) -> None:
    case = make_case(2100, heads=2, kv_heads=1, dtype=dtype)
    positions = [1023, 1024, 2099]
    assert_same(attend(case)[positions], expected(case, positions))


@pytest.mark.parametrize("size", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (6, 2), (40, 1)])
def test_bits_of_the_reference_for_shapes(size: int, heads: int, kv_heads: int) -> None:
    case = make_case(90, heads, kv_heads, size)
    positions = [5, 89]
    assert_same(attend(case)[positions], expected(case, positions))


@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_do_not_matter(variant: str) -> None:
    case = make_case(330, **VARIANTS[variant])
    whole = attend(case)
    for chunk in (1, 7, 64, 100, 329):
        assert_same(attend(case, chunk), whole)


@pytest.mark.parametrize("block_size", [32, 48, 128, 1024])
def test_block_sizes_do_not_matter(block_size: int) -> None:
    case = make_case(1500, heads=2, kv_heads=2)
    whole = attend(case, block_size=16)
    assert_same(attend(case, block_size=block_size), whole)
    assert_same(attend(case, 400, block_size=block_size), whole)


@pytest.mark.parametrize("variant", ["plain", "all"])
def test_the_batch_does_not_matter(variant: str) -> None:
    cases = [make_case(n, seed=n, **VARIANTS[variant]) for n in (150, 1, 70, 260)]
    alone = [attend(case) for case in cases]
    paged = PagedCases(cases, block_size=32)
    steps = [(100, 0, 70, 1), (0, 1, 0, 200), (49, 0, 0, 1), (1, 0, 0, 58)]
    results = [paged.step(step) for step in steps]
    for i, whole in enumerate(alone):
        assert_same(torch.cat([step[i] for step in results]), whole)


def test_threads_do_not_matter() -> None:
    case = make_case(400)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = attend(case)
        torch.set_num_threads(2)
        assert_same(attend(case), one)
    finally:
        torch.set_num_threads(threads)


def test_what_is_not_seen_does_not_matter() -> None:
    """Neither what comes later, nor what a window has left behind, not even if it is NaN."""
    case = make_case(200, window=50)
    other = make_case(200, window=50)
    other.keys[:100], other.values[:100] = 7.0, torch.nan
    other.keys[190:], other.values[190:] = torch.inf, 3.0
    assert_same(attend(other)[149:190], attend(case)[149:190])


@pytest.mark.parametrize("page", [-1, 2**31 - 1])
def test_pages_of_parts_that_a_window_has_left_may_be_gone(page: int) -> None:
    case = make_case(200, window=50)
    whole = attend(case)
    paged = PagedCases([case], block_size=16)
    paged.step([199])
    paged.pages[0, :9] = page  # the last query sees tokens from 150 on
    assert_same(paged.step([1])[0], whole[199:])


@pytest.mark.parametrize("part", ["query", "keys", "values"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite(part: str, number: float) -> None:
    case = make_case(100)
    whole = attend(case)
    getattr(case, part)[40, 0, 3] = number
    result = attend(case)
    hit = torch.zeros(100, HEADS, dtype=torch.bool)
    hit[40 if part == "query" else slice(40, None), 0 if part == "query" else slice(0, 2)] = True
    if part == "query":
        hit = torch.zeros_like(hit)
        hit[40, 0] = True
    assert result[hit].isnan().all()
    assert_same(result[~hit], whole[~hit])
    assert not result[~hit].isnan().any()


def test_extreme_magnitudes() -> None:
    """Scales at both ends of their range; large scores leave one token."""
    case = make_case(130, dtype=torch.float32)
    case.query[5] *= 2.0**120
    case.keys[7] *= 2.0**100
    case.keys[9] *= 2.0**-80
    case.values[60] *= 2.0**-100
    case.values[3] *= 2.0**100
    case.query[8], case.keys[11], case.values[12] = 0.0, 0.0, 0.0
    positions = [3, 5, 8, 20, 64, 129]
    assert_same(attend(case)[positions], expected(case, positions))


def exact_attention(case: Case) -> torch.Tensor:
    query, keys, values = (
        x.double().transpose(0, 1)[None] for x in (case.query, case.keys, case.values)
    )
    result: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, is_causal=True, enable_gqa=True
    )
    return result[0].transpose(0, 1)


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact).norm() / exact.norm())


def gaussian_case(tokens: int, dtype: torch.dtype) -> Case:
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(tokens, heads, 128, generator=generator).to(dtype) for heads in (2, 1, 1)
    )
    return Case(query, keys, values)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1.2e-4), (torch.bfloat16, 2e-3)])
def test_accuracy(dtype: torch.dtype, bound: float) -> None:
    case = gaussian_case(2048, dtype)
    exact = exact_attention(case)
    error = relative_error(attend(case), exact)
    assert error < bound
    if dtype == torch.bfloat16:
        assert error < 1.02 * relative_error(exact.to(dtype), exact)


@pytest.mark.parametrize("outlier", [1.0, 30.0])
def test_error_bound(outlier: float) -> None:
    """The bound that the specification states, with a channel and tokens that dwarf the others."""
    case = gaussian_case(500, torch.float32)
    case.keys[..., 17] *= outlier
    case.values[::7] *= outlier
    query, keys = case.query.double().abs(), case.keys.double().abs()
    by_keys = query.amax(-1) * keys.sum(-1).amax()  # not less than the largest over the tokens seen
    by_query = query.sum(-1) * keys.amax()
    scores = 2.0**-14.9 * case.scale * (by_keys + by_query)
    bound = (2.0**-12 + 2 * torch.expm1(scores)) * case.values.abs().max()
    error = (attend(case).double() - exact_attention(case)).abs().amax(-1)
    assert (error < bound).all()


def test_bytes_of_the_cache() -> None:
    assert attention_cache_shape(10, 8, 128, 16) == (10, 8, 16 * 514)
    with pytest.raises(ValueError, match="block_size must be a multiple of 16, but is 24"):
        attention_cache_shape(10, 8, 128, 24)


def test_append_writes_its_own_bytes() -> None:
    size, block_size = 32, 16
    cache = torch.zeros(attention_cache_shape(3, 2, size, block_size), dtype=torch.uint8)
    keys = numbers(1, 2, size, seed=1) + 3  # no digit is 0 by chance
    for slot in (-1, 20):
        portable_append(keys, keys, cache, torch.tensor([slot]))
        if slot < 0:
            assert not cache.any()
    rows = reference.quantised(as_floats(keys[0]))
    upper = cache[1, :, : block_size * size].view(2, size // 4, 16, 4)[:, :, 4].flatten(1)
    assert np.array_equal(upper.view(torch.int8).numpy(), rows.upper)
    assert int(cache[1, 0, 4 * 16 * size + 4]) == rows.scales[0]
    assert cache[[0, 2]].count_nonzero() == 0
    cache[1] = 0
    portable_append(keys, keys, cache, torch.tensor([20]))
    assert cache.count_nonzero() <= 2 * (4 * size + 2)


def attention_arguments() -> dict[str, Any]:
    return {
        "query": torch.zeros(3, 4, 32),
        "cache": torch.zeros(attention_cache_shape(4, 2, 32, 16), dtype=torch.uint8),
        "pages": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "query_starts": torch.tensor([0, 1, 3], dtype=torch.int32),
        "lengths": torch.tensor([20, 2], dtype=torch.int32),
        "scale": 1.0,
    }


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"query": torch.zeros(3, 4, 32).int()}, "query must have dtype float32, bfloat16 or flo"),
        ({"query": torch.zeros(3, 128)}, r"query must have 3 dimension\(s\), but has 2."),
        ({"query": torch.zeros(3, 4, 24)}, "heads must have a size that is a multiple of 16 up to"),
        ({"query": torch.zeros(3, 4, 272)}, "heads must have a size that is a multiple of 16 up"),
        ({"query": torch.zeros(3, 3, 32)}, "the 3 heads of query must be a multiple of the 2"),
        ({"cache": torch.zeros(4, 2, 16 * 130)}, "cache must have dtype uint8, but has float32."),
        ({"cache": torch.zeros(4, 2, 99).byte()}, "the last dimension of cache must be a multiple"),
        ({"pages": torch.zeros(2, 2)}, "pages must have dtype int32, but has float32."),
        ({"pages": ints(0, 1)}, r"pages must have 2 dimension\(s\), but has 1."),
        ({"pages": ints(0, 4, 2, 3).view(2, 2)}, r"pages\[0, 1\] is 4, but cache has 4 blocks."),
        ({"query_starts": ints(0, 3)}, "query_starts must have one entry for each of the 3 rows"),
        ({"query_starts": ints(0, 1, 2)}, "query_starts must begin with 0 and end with the 3 rows"),
        ({"query_starts": ints(0, 4, 3)}, r"lengths\[1\] must be in -1..32, from the sequence's"),
        ({"lengths": ints(20, 1)}, r"lengths\[1\] must be in 2..32, from the sequence's queries"),
        ({"lengths": ints(33, 2)}, r"lengths\[0\] must be in 1..32, from the sequence's queries"),
        ({"lengths": ints(20)}, "lengths must have one entry for each of the 2 rows of pages"),
        ({"scale": 0.0}, "scale must be in 2\\^-20..2\\^20, but is 0."),
        ({"window": -1}, "window must not be negative, but is -1."),
        ({"soft_cap": -1.0}, "soft_cap must be 0 or in 2\\^-10..2\\^17, but is -1."),
        ({"slopes": torch.zeros(2)}, "slopes must have one entry for each of the 4 heads"),
        ({"sinks": torch.zeros(4).half()}, "sinks must have dtype float32, but has float16."),
    ],
)
def test_argument_errors(wrong: dict[str, Any], sentence: str) -> None:
    portable_attention(**attention_arguments())
    with pytest.raises(RuntimeError, match=f"^portable_attention: {sentence}"):
        portable_attention(**attention_arguments() | wrong)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"keys": torch.zeros(2, 2, 32).int()}, "keys must have dtype float32, bfloat16 or float"),
        ({"values": torch.zeros(2, 2, 16)}, "values must have the shape of keys."),
        ({"cache": torch.zeros(4, 3, 16 * 130).byte()}, "cache must have the 2 heads of keys, but"),
        (
            {"slots": torch.tensor([0])},
            "slots must have one entry for each of the 2 tokens of keys",
        ),
        ({"slots": torch.tensor([0, 64])}, r"slots\[1\] is 64, but cache has room for 64 tokens."),
    ],
)
def test_argument_errors_of_append(wrong: dict[str, Any], sentence: str) -> None:
    given = {
        "keys": torch.ones(2, 2, 32),
        "values": torch.ones(2, 2, 32),
        "cache": torch.zeros(4, 2, 16 * 130, dtype=torch.uint8),
        "slots": torch.tensor([0, 1]),
    } | wrong
    with pytest.raises(RuntimeError, match=f"^portable_append: {sentence}"):
        portable_append(**given)
    assert not given["cache"].any()
