"""Every architecture, alone and in groups, to the last bit; without an engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.longrope import use_longrope
from tests.sizes import size
from tools.make_int8_model import FORMATS, make_int8_model
from tools.make_random_model import make_random_model
from tools.model_shapes import SHAPES
from vllm.hf_layers.products import single_row_products
from vllm.hf_layers.products.single_row_products import GROUP_SIZES, RowPlan, same_bits
from vllm.hf_model.group import Group
from vllm.hf_model.grouped_decode import GroupedDecode
from vllm.hf_model.model import NO_ADAPTER, ExactModel
from vllm.hf_model.model_cache import Blocks
from vllm.hf_model.row_linear import RowLinear

WAYS = [
    (dtype, attention)
    for dtype in ("bfloat16", "float16", "float32")
    for attention in ("sdpa", "eager")
]
# The attention of the first two is not called through an interface; the last one's cache holds
# latent vectors, which it expands to keys and values.
ONE_AT_A_TIME = {"falcon-7b", "bloom-560m", "deepseek-v2-lite"}
EAGER_ONLY = {"bloom-560m"}
NUM_STEPS = 6
BLOCK_SIZE, NUM_BLOCKS = 16, 8


def cases() -> list[Any]:
    """Every architecture in one way each, or in all ways."""
    ways = {
        shape: [way for way in WAYS if way[1] == "eager" or shape not in EAGER_ONLY]
        for shape in SHAPES
    }
    return [
        pytest.param(shape, *way, id="-".join((shape, *way)))
        for i, shape in enumerate(SHAPES)
        for way in (ways[shape] if size(0, 1) else [ways[shape][i % len(ways[shape])]])
    ]


def exact(model: PreTrainedModel, num_requests: int) -> ExactModel:
    """Return the model with pages for some requests."""
    config: Any = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={}),
        lora_config=None,
        model_config=SimpleNamespace(get_vocab_size=lambda: model.config.vocab_size),
    )
    found = ExactModel(model, config)
    for layer in found.cache.pages:
        layer.kv_cache = torch.full(
            (
                num_requests * NUM_BLOCKS,
                layer.num_heads,
                BLOCK_SIZE,
                layer.key_size + layer.value_size,
            ),
            torch.nan,
            dtype=layer.dtype,
        )
    return found


def blocks_of(request: int) -> torch.Tensor:
    """Return a request's blocks, which are not in their order."""
    first = request * NUM_BLOCKS
    return torch.arange(first, first + NUM_BLOCKS, dtype=torch.int32).flip(0)


def load(folder: Path, dtype: str, attention: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation=attention
    ).eval()


@torch.inference_mode()
def stock_run(model: PreTrainedModel, length: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a prompt of random tokens with its answer, and the logits of each step."""
    prompt = torch.randint(3, model.config.vocab_size, (1, length))
    output = model.generate(
        prompt,
        max_new_tokens=NUM_STEPS,
        do_sample=False,
        eos_token_id=-1,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.sequences, list(output.logits)


@pytest.mark.some(4)
@pytest.mark.parametrize(("shape", "dtype", "attention"), cases())
@torch.inference_mode()
def test_alone_and_in_a_group(shape: str, dtype: str, attention: str, tmp_path: Path) -> None:
    """Windows slide over the longest of these texts."""
    torch.manual_seed(0)
    make_random_model(shape, tmp_path, num_layers=2, narrow=True)
    model = load(tmp_path, dtype, attention)
    runs = [stock_run(model, length) for length in (1, 9, 40, 70)]
    engine = exact(model, len(runs))
    assert bool(engine.group_sizes[NO_ADAPTER]) == (shape not in ONE_AT_A_TIME)
    known = [0] * len(runs)
    for step in range(NUM_STEPS):
        stops = [run.shape[1] - NUM_STEPS + step for run, _ in runs]
        if step % 2 and engine.grouped is not None and 4 in engine.group_sizes[NO_ADAPTER]:
            newest = torch.cat(
                [run[0, stop - 1 : stop] for (run, _), stop in zip(runs, stops, strict=True)]
            )
            blocks = torch.stack([blocks_of(i) for i in range(len(runs))])
            slots = engine.cache.pages[0].slots_of(blocks, [(stop - 1, stop) for stop in stops])
            positions = [stop - 1 for stop in stops]
            found = list(engine.grouped(newest, blocks, positions, slots).split(1))
        else:
            found = [
                engine.alone(run[:, :stop], known[i], Blocks(blocks_of(i)))[0]
                for i, ((run, _), stop) in enumerate(zip(runs, stops, strict=True))
            ]
        known = stops
        for i, (_, logits) in enumerate(runs):
            assert same_bits(found[i].float(), logits[step].float()), (i, step)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", FORMATS)
@torch.inference_mode()
def test_int8_weights(kind: str, dtype: str, tmp_path: Path) -> None:
    """Transformers reads them as it reads any model's."""
    torch.manual_seed(0)
    model = load(make_int8_model(kind, tmp_path), dtype, "sdpa")
    assert model.hf_quantizer is not None
    run, logits = stock_run(model, 9)
    engine = exact(model, 1)
    known = 0
    for step, expected in enumerate(logits):
        found, _ = engine.alone(run[:, : 9 + step], known, Blocks(blocks_of(0)))
        assert same_bits(found.float(), expected.float()), step
        known = 9 + step


@torch.inference_mode()
def test_a_text_that_outgrows_the_first_context(tmp_path: Path) -> None:
    """Phi-3 forgets what it has cached then, as Transformers 5.19 calls it."""
    torch.manual_seed(0)
    make_random_model("phi3-mini", tmp_path, num_layers=2, narrow=True)
    config = AutoConfig.from_pretrained(tmp_path)
    use_longrope(config, trained=42)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, config=config, dtype=torch.float32
    ).eval()
    run, logits = stock_run(model, 40)
    engine = exact(model, 1)
    assert not engine.group_sizes[NO_ADAPTER]
    known = dropped = 0
    for step, expected in enumerate(logits):
        found, dropped = engine.alone(run[:, : 40 + step], known, Blocks(blocks_of(0)), dropped)
        assert same_bits(found, expected), step
        known = 40 + step
    assert dropped


# --- what the self-checks would find -------------------------------------------------------------
class ByHalves(nn.Linear):
    """Sums the two halves of a row apart, if there are several rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() == x.shape[-1]:
            return super().forward(x)
        half = self.in_features // 2
        first = nn.functional.linear(x[..., :half], self.weight[:, :half])
        return first + nn.functional.linear(x[..., half:], self.weight[:, half:])


class ByRow(nn.Linear):
    """Multiplies row by row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, 1, self.in_features).split(1)
        return torch.cat([super(ByRow, self).forward(row) for row in rows]).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_plans_tell_orders_of_summation_apart(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_row_products, "row_orders", lambda _: ())
    monkeypatch.setattr(single_row_products, "order_of_rows", lambda *_: None)
    for width in (64, 256):
        assert RowPlan(ByHalves(width, 64, bias=False, dtype=dtype)).sizes == []
        assert RowPlan(ByRow(width, 64, bias=False, dtype=dtype)).sizes == list(GROUP_SIZES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("width", "height"), [(256, 384), (1024, 4096), (80, 33)])
@torch.inference_mode()
def test_rows_of_a_group_have_the_bits_of_rows_alone(
    dtype: torch.dtype, bias: bool, width: int, height: int
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(width, height, bias=bias, dtype=dtype)
    group = Group()
    stand_in = RowLinear(layer, RowPlan(layer), group)
    for count in (2, 3, 8, 32):
        rows = torch.randn(count, 1, width).to(dtype)
        alone = torch.cat([layer(row) for row in rows.split(1)])
        with group.of_rows():
            assert same_bits(stand_in(rows), alone)
            assert same_bits(stand_in(rows[:, 0]), alone[:, 0])
        assert same_bits(stand_in(rows), layer(rows))


@torch.inference_mode()
def test_a_group_with_other_bits_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_random_model("tinyllama-1.1b", tmp_path, num_layers=2, narrow=True)
    compute = GroupedDecode.__call__

    def nearly(self: GroupedDecode, token_ids: torch.Tensor, *args: Any) -> torch.Tensor:
        logits = compute(self, token_ids, *args)
        if len(token_ids) == 8:
            logits[3, 5] = torch.nextafter(logits[3, 5], logits.new_tensor(torch.inf))
        return logits

    monkeypatch.setattr(GroupedDecode, "__call__", nearly)
    engine = exact(load(tmp_path, "float32", "sdpa"), 1)
    assert engine.group_sizes[NO_ADAPTER] == [64, 32, 16, 4, 2, 1]


@torch.inference_mode()
def test_an_operator_with_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: int
    ) -> torch.Tensor:
        if order == 4:
            return torch.cat([nn.functional.linear(row, weight) for row in x.split(1)])
        return nn.functional.linear(x.float(), weight.float()).bfloat16()

    layer = nn.Linear(1024, 512, bias=False, dtype=torch.bfloat16)
    monkeypatch.setattr(single_row_products, "row_products", other)
    monkeypatch.setattr(single_row_products, "row_orders", lambda _: (2,))
    assert RowPlan(layer).order is None
    monkeypatch.setattr(single_row_products, "row_orders", lambda _: (2, 4, 6))
    assert RowPlan(layer).order == 4
