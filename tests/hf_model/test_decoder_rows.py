"""All decoder layers as one operator, in exact mode: the bits are those of the modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaMLP

from tests.hf_layers.own_kernels import own_kernels
from tests.hf_model.test_models import blocks_of, exact, load
from tests.instruction_sets import NEEDS_AVX512
from tools.make_random_model import make_random_model
from vllm.hf_layers.products.single_row_products import same_bits
from vllm.hf_model import self_check
from vllm.hf_model.decoder_rows import DecoderRows, SideBySide, keep_their_places
from vllm.hf_model.model import NO_ADAPTER, ExactModel

__all__ = ["own_kernels"]

pytestmark = [NEEDS_AVX512, pytest.mark.usefixtures("grouped")]

LENGTHS = [3, 17, 40, 70]


@pytest.fixture
def grouped(own_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests share the operator on CPUs, too, whose libraries add otherwise: the bits of
    operator and modules are compared here, and with those of Transformers in `test_models`.
    """
    monkeypatch.setattr(self_check, "same_bits", lambda *_: True)


def engine_of(shape: str, folder: Path, dtype: str = "bfloat16") -> ExactModel:
    torch.manual_seed(0)
    make_random_model(shape, folder, num_layers=2, narrow=True)
    engine = exact(load(folder, dtype, "sdpa"), len(LENGTHS))
    assert engine.group_sizes[NO_ADAPTER] == [64, 32, 16, 8, 4, 2, 1]
    return engine


def layers_of(engine: ExactModel) -> list[Any]:
    return list(engine.model.get_decoder().layers)


def takes_operator(engine: ExactModel) -> bool:
    return engine.grouped is not None and engine.grouped._operator is not None


def step(engine: ExactModel, size: int = len(LENGTHS)) -> list[torch.Tensor]:
    """Return the logits of a token of each request, and the pages afterwards."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 200, (len(LENGTHS),), generator=generator)
    for layer in engine.cache.pages:
        cache = torch.randn(layer.kv_cache.shape, generator=generator)
        layer.kv_cache = cache.to(layer.kv_cache.dtype)
    blocks = torch.stack([blocks_of(i) for i in range(len(LENGTHS))])
    assert engine.grouped is not None
    slots = engine.cache.pages[0].slots_of(blocks, [(one, one + 1) for one in LENGTHS])
    logits = [
        engine.grouped(tokens[part], blocks[part], LENGTHS[part], slots[part])
        for part in (slice(i, i + size) for i in range(0, len(LENGTHS), size))
    ]
    return [torch.cat(logits), *(layer.kv_cache for layer in engine.cache.pages)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that the operator computes."""
    found: list[int] = []
    compute = DecoderRows.__call__

    def recorded(self: DecoderRows, x: torch.Tensor, *args: Any) -> torch.Tensor:
        found.append(len(x))
        return compute(self, x, *args)

    monkeypatch.setattr(DecoderRows, "__call__", recorded)
    return found


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", ["tinyllama-1.1b", "qwen2-0.5b", "mistral-7b", "qwen3-0.6b"])
@torch.inference_mode()
def test_bits(shape: str, dtype: str, tmp_path: Path, calls: list[int]) -> None:
    engine = engine_of(shape, tmp_path, dtype)
    if dtype == "float32" and not takes_operator(engine):
        pytest.skip("the order of this CPU's library is not known in float32")
    calls.clear()
    found = step(engine)
    assert calls == [4]
    assert all(map(same_bits, step(engine, 1), found))
    calls.clear()
    assert engine.grouped is not None
    engine.grouped._operator = None
    assert all(map(same_bits, step(engine), found))
    assert calls == []


@torch.inference_mode()
def test_layers_that_are_watched_or_changed(
    tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of("tinyllama-1.1b", tmp_path)
    expected = step(engine)
    calls.clear()
    seen = []
    first = layers_of(engine)[0]
    hook = first.mlp.register_forward_hook(lambda *_: seen.append(1))
    assert all(map(same_bits, step(engine), expected))
    hook.remove()
    assert (calls, seen) == ([], [1])
    with monkeypatch.context() as patch:
        forward = type(first.mlp).forward
        patch.setattr(type(first.mlp), "forward", lambda self, x: forward(self, x) * 0.5)
        assert not same_bits(step(engine)[0], expected[0])
    assert calls == []
    first.mlp.act_fn, stock = nn.Tanh(), first.mlp.act_fn
    assert not same_bits(step(engine)[0], expected[0])
    first.mlp.act_fn = stock
    assert all(map(same_bits, step(engine), expected))
    calls.clear()
    layers = engine.model.get_decoder().layers
    layers[0], kept = layers[1], layers[0]  # as who prunes a model may do
    assert not same_bits(step(engine)[0], expected[0])
    assert calls == []
    layers[0] = kept
    assert all(map(same_bits, step(engine), expected))
    assert calls == [4]


@torch.inference_mode()
def test_a_model_that_is_watched_or_changed(tmp_path: Path, calls: list[int]) -> None:
    """What is around the layers is called as it is: the model itself, its head, its norm."""
    engine = engine_of("tinyllama-1.1b", tmp_path)
    expected, model = step(engine), engine.model
    calls.clear()
    seen = []
    for module in (model, model.lm_head, model.get_decoder(), model.get_decoder().norm):
        hook = module.register_forward_hook(lambda *_: seen.append(1))
        assert all(map(same_bits, step(engine), expected))
        hook.remove()
    assert (calls, seen) == ([], [1] * 4)
    forward = model.forward

    def louder(**arguments: Any) -> Any:
        output = forward(**arguments)
        output.logits = output.logits * 2
        return output

    model.forward = louder
    assert same_bits(step(engine)[0], expected[0] * 2)
    del model.forward
    head, model.lm_head = model.lm_head, nn.Linear(*reversed(model.lm_head.weight.shape)).bfloat16()
    assert not same_bits(step(engine)[0], expected[0])
    model.lm_head = head
    assert calls == []
    assert all(map(same_bits, step(engine), expected))
    assert calls == [4]


def test_other_weights_count(tmp_path: Path) -> None:
    """Those that are written into parameters, or put in their place, outside of inference."""
    engine = engine_of("qwen2-0.5b", tmp_path)
    with torch.inference_mode():
        before = step(engine)
    layer = layers_of(engine)[0]
    for parameter in (layer.self_attn.k_proj.weight, layer.self_attn.v_proj.bias):
        kept = parameter.data.clone()
        engine.load_weights([(name_of(engine, parameter), torch.ones_like(parameter.data))])
        with torch.inference_mode():
            assert not same_bits(step(engine)[0], before[0])
        parameter.data = kept
        with torch.inference_mode():
            assert all(map(same_bits, step(engine), before))
    gate = layer.mlp.gate_proj
    gate.weight = nn.Parameter(torch.zeros_like(gate.weight))
    with torch.inference_mode():
        assert not same_bits(step(engine)[0], before[0])


def name_of(engine: ExactModel, parameter: nn.Parameter) -> str:
    return next(name for name, one in engine.model.named_parameters() if one is parameter)


def test_a_class_that_was_patched_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forward is called, and requests are computed together all the same."""
    forward = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: forward(self, x) * 0.5)
    assert not takes_operator(engine_of("tinyllama-1.1b", tmp_path))


def test_layers_that_it_does_not_compute(tmp_path: Path) -> None:
    assert not takes_operator(engine_of("gemma3-1b", tmp_path))


def test_weights_that_would_change_their_places() -> None:
    """In float32 a product's order may depend on where in a line of a cache its weight lies."""
    memory = torch.zeros(100)
    first, second = memory[:24].view(3, 8), memory[24:40].view(2, 8)
    assert keep_their_places([first, second])
    assert not keep_their_places([second, first])
    assert keep_their_places([second.bfloat16(), first.bfloat16()])
    linear, other = nn.Linear(8, 3, bias=False), nn.Linear(8, 2, bias=False)
    linear.weight.data, other.weight.data = first, second
    places = [layer.weight.data_ptr() % 64 for layer in (linear, other)]
    weight, bias = SideBySide([linear, other]).parameters
    assert bias is None
    assert weight.data_ptr() == linear.weight.data_ptr() != first.data_ptr()
    assert [layer.weight.data_ptr() % 64 for layer in (linear, other)] == places
