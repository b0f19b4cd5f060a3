"""Single tokens have the same bits where all decoder layers are one operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests.engines import MODEL
from tests.hf_layers.own_kernels import own_kernels
from tests.instruction_sets import NEEDS_AVX512
from tests.loaded_models import LoadModel, engine_config, model_of
from tools.make_random_model import make_random_model
from vllm.fork.models.decoder_forward import DecoderForward
from vllm.fork_kernels.torch_order.decoder_rows import decoder_rows as operator_of_rows
from vllm.forward_context import set_forward_context
from vllm.hf_layers.decoder import decoder_rows
from vllm.hf_layers.decoder.rows_in_pages import MOST_ROWS
from vllm.hf_layers.products.single_row_products import same_bits

__all__ = ["own_kernels"]

pytestmark = [NEEDS_AVX512, pytest.mark.usefixtures("own_kernels")]

BLOCK_SIZE, BLOCKS = 16, 16
KINDS = ("tinyllama-1.1b", "qwen2-0.5b", "mistral-7b", "qwen3-0.6b")


class Layers:
    """A model without its head, and what is around it in a step.

    Args:
        model: of vLLM.
        config: of its engine.
    """

    def __init__(self, model: Any, config: Any) -> None:
        self.decoder: Any = model.model
        self.layers: Any = model.model.layers
        self._config = config
        self.hidden_size = config.model_config.hf_text_config.hidden_size
        self.dtype = config.model_config.dtype
        self._names = [layer.self_attn.attn.layer_name for layer in self.layers]

    def run(self, lengths: list[int], queries: list[int] | None = None) -> list[torch.Tensor]:
        """Return what the model computes, and the keys and values afterwards.

        Args:
            lengths: of the texts with the new tokens.
            queries: new tokens of each; one of each without.
        """
        queries = [1] * len(lengths) if queries is None else queries
        generator = torch.Generator().manual_seed(len(lengths))
        count = len(lengths)
        for layer in self.layers:
            attn = layer.self_attn.attn
            shape = (count * BLOCKS, attn.num_kv_heads, BLOCK_SIZE, 2 * attn.head_size)
            attn.kv_cache = torch.randn(shape, generator=generator).to(self.dtype)
        blocks = torch.randperm(count * BLOCKS, generator=generator).int().view(count, BLOCKS)
        starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        positions = torch.cat(
            [torch.arange(n - new, n) for n, new in zip(lengths, queries, strict=True)]
        )
        rows = torch.arange(count).repeat_interleave(torch.tensor(queries))
        slots = blocks[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        metadata = SimpleNamespace(
            query_start_loc=starts, seq_lens=torch.tensor(lengths).int(), block_table=blocks
        )
        x = torch.randn(len(rows), self.hidden_size, generator=generator).to(self.dtype)
        with set_forward_context(
            dict.fromkeys(self._names, metadata),
            self._config,
            num_tokens=len(x),
            slot_mapping=dict.fromkeys(self._names, slots),
        ):
            answer = self.decoder(None, positions, None, inputs_embeds=x)
        return [answer, *(layer.self_attn.attn.kv_cache for layer in self.layers)]


@pytest.fixture
def layers(one_rank: None, tmp_path: Path, request: pytest.FixtureRequest) -> Layers:
    """Of a model in hf_compat."""
    shape, dtype = getattr(request, "param", ("tinyllama-1.1b", "bfloat16"))
    make_random_model(shape, tmp_path, num_layers=2, narrow=True)
    config = engine_config(tmp_path, hf_compat=True, dtype=dtype)
    return Layers(model_of(config), config)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of rows that the operator computes from now on."""
    found: list[int] = []

    def recorded(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found.append(len(x))
        return operator_of_rows(x, *args, **kwargs)

    monkeypatch.setattr(decoder_rows, "decoder_rows", recorded)
    return found


def run_in_their_own_way(layers: Layers, *args: Any) -> list[torch.Tensor]:
    """As `Layers.run`, by the model's modules."""
    with mock.patch.object(DecoderForward, "current_layers", return_value=None):
        return layers.run(*args)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "layers", [(kind, dtype) for kind in KINDS for dtype in ("bfloat16", "float16")], indirect=True
)
@torch.inference_mode()
def test_bits(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as there can be, one, and numbers between; texts of all lengths."""
    counted = calls(monkeypatch)
    for count in (1, 2, 7, 16, MOST_ROWS):
        lengths = [1 + 89 * i // count for i in range(count)]
        found = layers.run(lengths)
        assert counted == [count]
        counted.clear()
        expected = run_in_their_own_way(layers, lengths)
        assert counted == []
        assert all(map(same_bits, found, expected))


STEPS = [
    ([7], [7]),
    ([64], [64]),
    ([40, 50, 60], [3, 50, 60]),  # the first goes on behind what is cached
    ([90, 1, 33, 2, 64, 65], [1, 1, 1, 2, 64, 65]),
    ([30, 95, 17], [30, 1, 1]),
    ([1], [1]),
]
"""Lengths of texts, and how many tokens of each are new."""


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "layers", [(kind, dtype) for kind in KINDS for dtype in ("bfloat16", "float16")], indirect=True
)
@torch.inference_mode()
def test_bits_of_prompts(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    """By themselves, several, and beside single tokens; Mistral's have to fit into a window."""
    counted = calls(monkeypatch)
    (window,) = {*layers.decoder.forward.current_layers()._windows}
    for lengths, queries in STEPS:
        found = layers.run(lengths, queries)
        longest = max((n for n, new in zip(lengths, queries, strict=True) if new > 1), default=0)
        assert counted == ([sum(queries)] if not window or longest < window else [])
        counted.clear()
        expected = run_in_their_own_way(layers, lengths, queries)
        assert counted == []
        assert all(map(same_bits, found, expected))


@pytest.fixture
def threads() -> Iterator[None]:
    """What a test sets is taken back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3])
@torch.inference_mode()
def test_activations_that_threads_leave_a_rest_of(
    count: int, one_rank: None, threads: None
) -> None:
    """An odd number of rows of 320 elements is no multiple of whole vectors for each thread."""
    config = engine_config(MODEL, hf_compat=True, dtype="float16")
    layers = Layers(model_of(config), config)
    torch.set_num_threads(count)
    for new in ([105], [111], [205], [1, 105, 103], [209, 1], [110, 207]):
        found = layers.run(new, new)
        expected = run_in_their_own_way(layers, new, new)
        assert all(map(same_bits, found, expected)), new


@torch.inference_mode()
def test_steps_that_go_the_own_way(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    """More single tokens than the operator takes, and some behind a prompt and before another."""
    counted = calls(monkeypatch)
    layers.run([20] * (MOST_ROWS + 1))
    layers.run([20, 30, 40, 50], [1, 30, 1, 50])
    assert counted == []


@torch.inference_mode()
def test_prompts_that_need_a_mask(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = calls(monkeypatch)
    monkeypatch.setattr(layers.decoder.forward.current_layers(), "_windows", [32, 0])
    layers.run([32], [32])
    assert counted == []
    layers.run([31, 90], [31, 1])
    assert counted == [32]


def hooked(layer: Any) -> Any:
    return layer.mlp.down_proj.register_forward_hook(lambda *_: None)


def replaced(layer: Any) -> Any:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    layer.mlp.act_fn, stock = Other(), layer.mlp.act_fn
    return SimpleNamespace(remove=lambda: setattr(layer.mlp, "act_fn", stock))


def globally_hooked(_: Any) -> Any:
    return nn.modules.module.register_module_forward_pre_hook(lambda *_: None)


def with_own_forward(layer: Any) -> Any:
    forward = layer.mlp.forward
    layer.mlp.forward = lambda x: forward(x) * 0.5
    return SimpleNamespace(remove=lambda: delattr(layer.mlp, "forward"))


@pytest.mark.parametrize("change", [hooked, replaced, globally_hooked, with_own_forward])
@torch.inference_mode()
def test_layers_that_were_changed(
    change: Any, layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the operator was used, and before it is used again."""
    counted = calls(monkeypatch)
    before = layers.run([20, 30])
    assert counted == [2]
    counted.clear()
    handle = change(layers.layers[0])
    if change is replaced:  # two halves, of which the other module leaves both
        with pytest.raises(RuntimeError):
            layers.run([20, 30])
    else:
        assert same_bits(layers.run([20, 30])[0], before[0]) == (change is not with_own_forward)
    assert counted == []
    handle.remove()
    layers.run([20, 30])
    assert counted == [2]


@torch.inference_mode()
def test_a_layer_that_takes_the_place_of_another(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = layers.run([20, 30])
    counted = calls(monkeypatch)
    first, second = layers.layers
    layers.layers[0] = second
    assert not same_bits(layers.run([20, 30])[0], before[0])
    assert counted == []
    layers.layers[0] = first
    assert same_bits(layers.run([20, 30])[0], before[0])
    assert counted == [2]


@torch.inference_mode()
def test_layers_whose_outputs_are_wanted(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As models that draft with them want them."""
    counted = calls(monkeypatch)
    monkeypatch.setattr(layers.decoder, "aux_hidden_state_layers", (1,))
    answer, own = layers.run([20, 30])[0]
    assert counted == []
    assert answer.shape == own[0].shape


@torch.inference_mode()
def test_other_weights_count(layers: Layers) -> None:
    """Those that are written to, and parameters that take the place of others."""
    before = layers.run([20, 30])
    down = layers.layers[0].mlp.down_proj
    down.weight.data.mul_(2)
    written = layers.run([20, 30])
    assert not same_bits(written[0], before[0])
    kept, down.weight = down.weight, nn.Parameter(down.weight.data / 2, requires_grad=False)
    assert same_bits(layers.run([20, 30])[0], before[0])
    down.weight = kept
    assert same_bits(layers.run([20, 30])[0], written[0])
    down.weight.data.div_(2)


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ("tinyllama-1.1b", {"dtype": "float32", "hf_compat": True}),
        ("gemma3-1b", {"hf_compat": True}),
    ],
)
def test_layers_that_it_does_not_compute(
    shape: str, arguments: dict[str, Any], load_model: LoadModel
) -> None:
    model, _ = load_model(shape, **arguments)
    for layer in model.modules():
        own = vars(layer).get("forward")
        assert not isinstance(own, DecoderForward) or own.current_layers() is None
