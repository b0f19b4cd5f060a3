"""CUDA kernels of attention, emulated on the CPU: the bits of the CPU's ops."""

import ctypes
from typing import Any

import pytest
import torch

from tests.kernels import emulated_ops as emulated
from tests.kernels.attention.portable_attention_cases import Case, PagedCases, make_case
from tests.kernels.emulation import GARBAGE
from tests.kernels.portable_cases import DTYPES, assert_same, numbers
from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)

SLOPES = torch.tensor([0.5, 0.25, 0.0, 2.0**-8])
SINKS = torch.tensor([3.0, -80.0, 500.0, 0.0])
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 70},
    "window of one": {"window": 1},
    "soft cap": {"soft_cap": 20.0},
    "alibi": {"slopes": SLOPES},
    "sinks": {"sinks": SINKS},
    "all": {"window": 90, "soft_cap": 30.0, "slopes": SLOPES, "sinks": SINKS},
}


class Batch:
    """Sequences in a cache, and the last tokens of each as queries."""

    def __init__(self, cases: list[Case], counts: list[int], block_size: int = 16) -> None:
        paged = PagedCases(cases, block_size)
        for i, case in enumerate(cases):
            positions = torch.arange(case.tokens)
            blocks = paged.pages[i].long()[positions // block_size]
            slots = blocks * block_size + positions % block_size
            portable_append(case.keys, case.values, paged.cache, slots)
        self.cache, self.pages = paged.cache, paged.pages
        self.query = torch.cat(
            [c.query[len(c.query) - n :] for c, n in zip(cases, counts, strict=True)]
        )
        self.starts = torch.tensor([0, *counts]).cumsum(0).int()
        self.lengths = torch.tensor([case.tokens for case in cases], dtype=torch.int32)
        self.variant: dict[str, Any] = {"scale": cases[0].scale, **cases[0].variant}

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.query, self.cache, self.pages, self.starts, self.lengths

    def expected(self) -> torch.Tensor:
        return portable_attention(*self.arguments, **self.variant)

    def emulated(self, **choices: Any) -> torch.Tensor:
        return emulated.portable_attention(*self.arguments, **{**self.variant, **choices})


LARGEST_PROMPT_HEAD = 128


def assert_emulation_agrees(batch: Batch, splits: int | None = None) -> None:
    """By the simple kernel, with so many splits, and by the one of prompts."""
    choices: dict[str, Any] = {} if splits is None else {"splits": splits}
    expected = batch.expected()
    assert_same(batch.emulated(**choices), expected)
    if splits in (None, 1) and batch.query.shape[2] <= LARGEST_PROMPT_HEAD:
        assert_same(batch.emulated(as_prompts=True), expected)


@pytest.mark.some(6)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [16, 80, 128, 256])
def test_append(dtype: torch.dtype, size: int) -> None:
    """Also where keys and values lie within larger rows, and some slots are to be left out."""
    rows = numbers(5, 3, 2 * size, seed=1, dtype=dtype, scale=4.0)
    rows[1, 1, 3] = torch.nan
    rows[2, 0, size + 1] = -torch.inf
    rows[3] *= 0
    keys, values = rows[..., :size], rows[..., size:]
    slots = torch.tensor([0, -1, 47, 31, 33])
    caches = [
        torch.full(attention_cache_shape(3, 3, size, 16), 0xA5, dtype=torch.uint8) for _ in range(2)
    ]
    portable_append(keys, values, caches[0], slots)
    emulated.portable_append(keys, values, caches[1], slots)
    assert_same(caches[1], caches[0])
    emulated.portable_append(keys, values, caches[1], torch.full((5,), 48))  # beyond the cache
    assert_same(caches[1], caches[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill(variant: str) -> None:
    assert_emulation_agrees(Batch([make_case(170, **VARIANTS[variant])], [170]))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("splits", [1, 3])
def test_decode(variant: str, splits: int) -> None:
    """Superblocks merge alike in one block of threads and in several."""
    lengths = (2100, 1, 65, 1030)
    cases = [make_case(n, seed=n, **VARIANTS[variant]) for n in lengths]
    assert_emulation_agrees(Batch(cases, [1] * 4, block_size=32), splits)


@pytest.mark.some(10)
@pytest.mark.parametrize("size", [16, 32, 80, 96, 128, 144, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (6, 2), (40, 1)])
def test_shapes(size: int, heads: int, kv_heads: int) -> None:
    assert_emulation_agrees(Batch([make_case(90, heads, kv_heads, size)], [3]))


@pytest.mark.some(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [16, 48, 1024])
def test_batches(dtype: torch.dtype, block_size: int) -> None:
    """Prefill, chunks and decode at once, and sequences without a query."""
    cases = [make_case(n, seed=n, dtype=dtype) for n in (150, 1, 70, 260, 20)]
    assert_emulation_agrees(Batch(cases, [30, 1, 0, 17, 20], block_size))


@pytest.mark.parametrize("splits", [1, 3])
def test_a_step_that_is_filled_up(splits: int) -> None:
    """As those of CUDA graphs: with rows, and sequences without a token, behind the last one."""
    batch = Batch([make_case(n, seed=n) for n in (2100, 70)], [1, 1])
    expected = batch.expected()
    batch.query = torch.cat([batch.query, torch.full_like(batch.query, torch.nan)])
    batch.starts = torch.tensor([0, 1, 2, 2, 2], dtype=torch.int32)
    batch.lengths = torch.tensor([2100, 70, 0, 0], dtype=torch.int32)
    batch.pages = torch.cat([batch.pages, torch.zeros_like(batch.pages)])
    assert_same(batch.emulated(splits=splits)[:2], expected)


@pytest.mark.parametrize("splits", [1, 2, 3])
def test_a_window_over_superblocks(splits: int) -> None:
    batch = Batch([make_case(3200, 2, 1, window=1000)], [9])
    expected = batch.expected()
    first_seen = 3191 - 999
    batch.pages[0, : first_seen // 16] = -1  # what a window has left behind may be gone
    assert_same(batch.emulated(splits=splits), expected)


@pytest.mark.parametrize("part", ["query", "keys", "values"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_not_finite(part: str, number: float) -> None:
    case = make_case(1100, 4, 2)
    getattr(case, part)[1090, 0, 3] = number
    batch = Batch([case], [20])
    for splits in (1, 2):
        result = batch.emulated(splits=splits)
        assert_same(result, batch.expected())
        assert result.isnan().any()
        assert not result.isnan().all()


@pytest.mark.parametrize("splits", [1, 2])
def test_sinks_that_are_not_finite(splits: int) -> None:
    sinks = torch.tensor([0.5, torch.nan, torch.inf, -torch.inf])
    assert_emulation_agrees(Batch([make_case(1050, sinks=sinks)], [3]), splits)


def test_extreme_magnitudes() -> None:
    case = make_case(130, dtype=torch.float32)
    case.query[125] *= 2.0**120
    case.keys[7] *= 2.0**100
    case.keys[9] *= 2.0**-80
    case.values[60] *= 2.0**-100
    case.values[3] *= 2.0**100
    case.query[128], case.keys[11], case.values[12] = 0.0, 0.0, 0.0
    assert_emulation_agrees(Batch([case], [6]))


def test_the_order_of_threads_does_not_matter() -> None:
    batch = Batch([make_case(200, sinks=SINKS)], [5])
    expected = batch.expected()
    for seed in range(2, 12):
        assert_same(batch.emulated(seed=seed), expected)


@pytest.mark.parametrize("splits", [1, 2])
def test_pages_that_there_are_not_give_nan(splits: int) -> None:
    """Where the CPU refuses: no number is made up, and nothing read beyond the cache."""
    batch = Batch([make_case(1200, 2, 1, window=600), make_case(40, 2, 1)], [1, 1])
    expected = batch.expected()
    for page in (-1, len(batch.cache)):
        batch.pages[0, 70] = page
        result = batch.emulated(splits=splits)
        assert result[0].isnan().all()
        assert_same(result[1], expected[1])
    batch.lengths[0] = 2000
    assert batch.emulated(splits=splits)[0].isnan().all()


def test_rows_behind_the_last_sequence_are_not_written() -> None:
    """A captured graph has room for more tokens than there are."""
    batch = Batch([make_case(40), make_case(30)], [2, 1])
    expected = batch.expected()
    batch.query = torch.cat([batch.query, torch.full_like(batch.query[:2], torch.nan)])
    for splits in (1, 2):
        result = batch.emulated(splits=splits)
        assert_same(result[:3], expected)
        assert (result[3:].view(torch.uint8) == GARBAGE).all()


SUPERBLOCK_PAGES = 64  # of 16 tokens


def widened(batch: Batch, superblocks: int) -> Batch:
    """Give the tables of pages room for so many superblocks."""
    rows, columns = batch.pages.shape
    wide = torch.full((rows, superblocks * SUPERBLOCK_PAGES), -1, dtype=torch.int32)
    wide[:, :columns] = batch.pages
    batch.pages = wide
    return batch


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize("queries", [1, 40])
def test_blocks_of_threads_without_a_token_do_nothing(queries: int, window: int) -> None:
    """Tables have room for the longest text, most sequences are shorter: no block that has nothing
    to attend to makes its warps wait, as all do that look at a query."""
    work = []
    for superblocks in (2, 64):
        cases = [make_case(n, 2, 1, window=window, seed=n) for n in (1030, 60)]
        batch = widened(Batch(cases, [queries, queries]), superblocks)
        assert_same(batch.emulated(), batch.expected())
        work.append(emulated.attention_work())
    (few_blocks, few_waits), (many_blocks, many_waits) = work
    assert few_waits == many_waits > 0
    if window == 0:
        assert many_blocks >= few_blocks + 62


def test_no_more_blocks_of_threads_than_keep_a_gpu_busy() -> None:
    """Each has several superblocks then, of those that there are."""
    lengths = (15000, *(1 + 60 * i for i in range(31)))
    cases = [make_case(n, 8, 8, 16, seed=n) for n in lengths]
    batch = widened(Batch(cases, [1] * len(cases)), 128)
    assert_same(batch.emulated(), batch.expected())
    attended = 34 * 8 * 16  # pieces, heads, and as many for each as make 4,096
    merged = 32 * 8 * 16 // (128 * 8)  # elements, and threads of a block, of which each has eight
    assert emulated.attention_work()[0] == attended + merged


def test_splits_are_for_few_queries_of_long_sequences() -> None:
    def splits_of(queries: int, blocks: int, window: int = 0) -> int:
        task = emulated.PagedAttention(queries=queries, heads=32, key_heads=8, sequences=queries)
        task.cache.page_tiles, task.cache.head_size = 1, 128
        task.width, task.window = blocks, window
        return int(emulated._library("attention").splits_of(ctypes.byref(task)))

    assert splits_of(1, 64) == 1
    assert splits_of(1, 65) == 2
    assert splits_of(4, 8192) == 128
    assert splits_of(4, 8192, window=2048) == 4
    assert splits_of(500, 8192) == 1
