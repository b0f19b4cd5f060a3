"""The start-up check goes through each way in which GPUs share their work out, on all of them.

What it computes is recorded on the CPU; what GPUs would make of it is asked of their code.
"""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tests.kernels import emulated_ops as emulated
from tests.kernels.product.emulated_product import EmulatedProduct, Gpu, ProductPlan, TensorCores
from vllm.deterministic import self_check
from vllm.fork_kernels.portable.product import PackedWeight

INT8, WARPGROUPS, BFLOAT16 = TensorCores

GPUS = {
    "A100": Gpu(108, 164, INT8),
    "A100, bfloat16": Gpu(108, 164, BFLOAT16),
    "A10": Gpu(72, 100, INT8),
    "RTX 4090": Gpu(128, 100, INT8),
    "L40S": Gpu(142, 100, INT8),
    "H20": Gpu(78, 228, WARPGROUPS),
    "H100 PCIe": Gpu(114, 228, WARPGROUPS),
    "H100, H200": Gpu(132, 228, WARPGROUPS),
    "H100 without wgmma": Gpu(132, 228, INT8),
    "H100, bfloat16": Gpu(132, 228, BFLOAT16),
    "B200": Gpu(148, 228, BFLOAT16),
    "B200, int8": Gpu(148, 228, INT8),
    "B300": Gpu(160, 228, BFLOAT16),
    "RTX 5090": Gpu(170, 100, INT8),
    "RTX PRO 6000": Gpu(188, 100, INT8),
    **{f"{n} multiprocessors": Gpu(n, 100, INT8) for n in range(56, 193, 7)},
}

FEW_ROWS = {
    INT8: {(8, 64), (16, 64), (32, 64), (64, 64)},
    WARPGROUPS: {(8, 64), (16, 64), (64, 128)},
    BFLOAT16: {(8, 64), (16, 64), (32, 64), (64, 64)},
}
MANY_ROWS = {INT8: {(96, 128)}, WARPGROUPS: {(96, 128), (128, 128)}, BFLOAT16: {(64, 128)}}
"""Tiles: rows and outputs."""


@dataclass
class Product:
    """Rows, and the weight that they were multiplied with."""

    rows: int
    outputs: int
    inputs: int
    segments: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.outputs, self.inputs, self.segments

    @property
    def has_segments_of_blocks(self) -> bool:
        return self.inputs >= 4096 and self.inputs // self.segments > 256


@dataclass
class Recorded:
    """What the check has computed."""

    products: list[Product] = field(default_factory=list)
    attention: list[tuple[emulated.PagedAttention, torch.Tensor]] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    found = Recorded()

    def product(x: torch.Tensor, weight: PackedWeight, *others: Any, **options: Any) -> Any:
        shape = (weight.out_features, weight.in_features, weight.segments)
        found.products.append(Product(len(x), *shape))
        return known["portable_product"](x, weight, *others, **options)

    def attention(*arguments: torch.Tensor, **options: Any) -> Any:
        found.attention.append((attention_task(*arguments, **options), arguments[-1]))
        return known["portable_attention"](*arguments, **options)

    def log_softmax(logits: torch.Tensor) -> Any:
        found.logits.append(logits)
        return known["portable_log_softmax"](logits)

    recorders = {
        "portable_product": product,
        "portable_attention": attention,
        "portable_log_softmax": log_softmax,
    }
    known = {name: getattr(self_check, name) for name in recorders}
    with pytest.MonkeyPatch.context() as patch:
        for name, recorder in recorders.items():
            patch.setattr(self_check, name, recorder)
        assert dict(self_check.digests()) == self_check.EXPECTED
    return found


def attention_task(
    query: torch.Tensor,
    cache: torch.Tensor,
    pages: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    **others: float,
) -> emulated.PagedAttention:
    task = emulated.PagedAttention(queries=len(query), heads=query.shape[1], window=window)
    task.soft_cap = soft_cap
    task.key_heads = cache.shape[1]
    task.sequences, task.width = pages.shape
    task.cache = emulated.CachePages.of(cache, query.shape[2])
    return task


@pytest.fixture(scope="module")
def product_library(tmp_path_factory: pytest.TempPathFactory) -> EmulatedProduct:
    return EmulatedProduct.compile(tmp_path_factory.mktemp("plans"))


@pytest.mark.some(18)
@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_products(gpu: Gpu, recorded: Recorded, product_library: EmulatedProduct) -> None:
    plans = [
        (product, plan)
        for product in recorded.products
        for plan in product_library.plans(product.shape, product.rows, gpu)
    ]

    def tiles_of(chosen: list[tuple[Product, ProductPlan]]) -> set[tuple[int, int]]:
        return {plan.tile for _, plan in chosen}

    few, many = FEW_ROWS[gpu.cores], MANY_ROWS[gpu.cores]
    every_tile = few | many
    pending = [(product, plan) for product, plan in plans if product.segments > plan.splits]
    in_memory = [(product, plan) for product, plan in pending if plan.pending]
    whole = [(product, plan) for product, plan in plans if plan.splits == product.segments == 8]
    blocks = [(product, plan) for product, plan in plans if product.has_segments_of_blocks]
    assert tiles_of(plans) == tiles_of(pending) == tiles_of(blocks) == every_tile
    assert tiles_of([one for one in whole if one in blocks]) >= few
    assert {plan.splits for _, plan in plans} == {1, 2, 4, 8}
    assert {plan.splits for product, plan in pending if product.segments == 8} > {1}
    assert many <= tiles_of([one for one in in_memory if one[1].splits == 1])
    assert any(plan.parts > plan.blocks for _, plan in plans)
    assert max(product.rows for product in recorded.products) > 1536


def test_digits_of_many_rows_are_made_by_what_computes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = ("portable_rms_norm", "portable_map", "portable_gated")
    rows: dict[str, int] = {}

    def record(name: str, known: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if any(isinstance(a, PackedWeight) for a in (*arguments, *options.values())):
                rows[name] = len(arguments[0])
            return known(*arguments, **options)

        return call

    for name in sources:
        monkeypatch.setattr(self_check, name, record(name, getattr(self_check, name)))
    list(self_check.answers(names=["products of many rows that were just computed"]))
    assert set(rows) == set(sources)
    assert min(rows.values()) > 64


def test_attention(recorded: Recorded) -> None:
    library = emulated._library("attention")
    library.splits_of.restype = ctypes.c_int64
    split, whole, prompts = set(), set(), set()
    for task, lengths in recorded.attention:
        task.has_warpgroups = True
        if library.is_launched_as_prompts(ctypes.byref(task)):
            assert int(lengths.min()) < 64 < 1024 < int(lengths.max())
            prompts.add((task.cache.head_size, task.window > 0, task.soft_cap > 0))
        task.has_warpgroups = False
        splits = library.splits_of(ctypes.byref(task))
        if splits > 1:
            assert int(lengths.min()) <= 1024 < int(lengths.max())  # blocks without a token, too
            split.add((task.cache.head_size, task.window > 0))
        elif int(lengths.max()) > 1024:
            assert task.window == 0 or int(lengths.min()) - task.window < 1024
            whole.add(task.cache.head_size)
    sizes = {(size, is_window) for size in (64, 128, 256) for is_window in (False, True)}
    assert split == {*sizes, (80, False)}
    assert whole == {64, 128, 256}
    assert prompts == {(128, True, False), (64, False, True)}


@pytest.mark.some(18)
@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_logits(gpu: Gpu, recorded: Recorded) -> None:
    """A row is one part's, or several blocks of threads share it."""
    parts = {emulated.row_parts(logits, gpu.processors) for logits in recorded.logits}
    assert 1 in parts
    assert max(parts) > 4
