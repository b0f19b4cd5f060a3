"""All decoder layers as one operator have the bits that the layers' own way gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.kernels.portable_cases import assert_same
from tests.live_weights.checkpoints import changed_checkpoint, tensors_of
from tests.loaded_models import LoadModel, engine_config, load_model, model_of
from tools.make_random_model import make_random_model
from vllm.deterministic import decoder
from vllm.deterministic.attention import PortableMetadata
from vllm.deterministic.decoder import layers_of
from vllm.deterministic.guard import only_exact_operations
from vllm.fork.live_weights.install import let_weights_change
from vllm.fork.models.decoder_forward import DecoderForward
from vllm.fork_kernels.portable.decoder import portable_decoder_layers
from vllm.forward_context import set_forward_context

__all__ = ["load_model"]

BLOCK_SIZE, BLOCKS = 16, 6
KINDS = ("tinyllama-1.1b", "qwen2-0.5b", "mistral-7b", "qwen3-0.6b", "phi3-mini")
STEPS: dict[str, list[tuple[int, int]]] = {
    "one": [(40, 1)],
    "decoding": [(1 + 89 * i // 33, 1) for i in range(33)],
    "prompts": [(30, 30), (1, 1), (96, 96), (17, 17)],
    "cached prefixes": [(60, 20), (96, 3), (33, 1), (16, 16)],
}
"""Of each text the tokens, and how many of them are new."""


class Model:
    """A model without its head, and what is around it in a step.

    Args:
        folder: with a checkpoint.
        arguments: of the engine.
    """

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.config = engine_config(folder, deterministic=True, **arguments)
        self.whole = _loaded(self.config)
        self.model = self.whole.model
        self.attention = [layer.self_attn.attn for layer in self.model.layers]
        self.last_bytes: list[torch.Tensor] = []

    def run(self, texts: list[tuple[int, int]], **arguments: Any) -> torch.Tensor:
        """Return the hidden states of new tokens, and leave new caches in `last_bytes`.

        Args:
            texts: tokens, and how many of them are new; the others are computed before.
            arguments: of the model's ``forward`` in the step with the new ones.
        """
        caches = BLOCKS * len(texts), self.attention[0].num_kv_heads, BLOCK_SIZE
        for one in self.attention:
            one.kv_cache = torch.zeros(*caches, 4 * one.head_size + 2, dtype=torch.uint8)
        earlier = [(length - new, length - new) for length, new in texts]
        if any(new for _, new in earlier):
            self._step(earlier, {})
        hidden_states = self._step(texts, arguments)
        self.last_bytes = [one.kv_cache for one in self.attention]
        return hidden_states

    def _step(self, texts: list[tuple[int, int]], arguments: dict[str, Any]) -> Any:
        count = len(texts)
        generator = torch.Generator().manual_seed(count)
        blocks = torch.randperm(count * BLOCKS, generator=generator).int().view(count, BLOCKS)
        news = torch.tensor([new for _, new in texts])
        starts = torch.cat([torch.zeros(1), news.cumsum(0)]).int()
        positions = torch.cat([torch.arange(length - new, length) for length, new in texts])
        rows = torch.arange(count).repeat_interleave(news)
        slots = blocks[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        lengths = torch.tensor([length for length, _ in texts]).int()
        metadata = PortableMetadata(starts, lengths, blocks, len(positions))
        names = [one.layer_name for one in self.attention]
        ids = (positions * 7 + rows * 13) % 100
        with set_forward_context(
            dict.fromkeys(names, metadata),
            self.config,
            num_tokens=len(positions),
            slot_mapping=dict.fromkeys(names, slots),
        ):
            given = {"input_ids": ids, "intermediate_tensors": None, **arguments}
            return self.model(positions=positions, **given)


def _loaded(config: Any) -> Any:
    return model_of(config)


@contextmanager
def own_way() -> Iterator[None]:
    """Let every model compute as vLLM's own does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecoderForward, "current_layers", lambda _: None)
        yield


@pytest.fixture
def model(one_rank: None, tmp_path: Path, request: pytest.FixtureRequest) -> Model:
    shape, dtype = getattr(request, "param", ("tinyllama-1.1b", "bfloat16"))
    make_random_model(shape, tmp_path, num_layers=3, narrow=True)
    return Model(tmp_path, dtype=dtype)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that the operator has computed."""
    found: list[int] = []

    def recorded(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        found.append(len(x))
        return portable_decoder_layers(x, *args, **kwargs)

    monkeypatch.setattr(decoder, "portable_decoder_layers", recorded)
    return found


def assert_same_as_own(model: Model, texts: list[tuple[int, int]], **arguments: Any) -> None:
    found, caches = model.run(texts, **arguments), model.last_bytes
    with own_way():
        expected = model.run(texts, **arguments)
    assert_same(found, expected)
    for cache, own in zip(caches, model.last_bytes, strict=True):
        assert torch.equal(cache, own)
        assert cache.any()


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "model", [(kind, dtype) for kind in KINDS for dtype in ("bfloat16", "float16")], indirect=True
)
@torch.inference_mode()
def test_bits(model: Model, counted: list[int]) -> None:
    """The hidden states, and the keys and values that all layers have written."""
    with torch.random.fork_rng():
        for layer in model.model.layers:  # random models have norms of ones, and biases of zeros
            for name, parameter in layer.named_parameters():
                if "norm" in name or name.endswith("bias"):
                    parameter.data.add_(torch.randn(parameter.shape).to(parameter.dtype) / 8)
    for texts in STEPS.values():
        assert_same_as_own(model, texts)
        assert counted[-1] == sum(new for _, new in texts)
    has_biases = any(name.endswith("bias") for name, _ in model.model.named_parameters())
    assert has_biases == (type(model.model).__name__ == "Qwen2Model")


@torch.inference_mode()
def test_the_operator_passes_the_guard(model: Model, counted: list[int]) -> None:
    with only_exact_operations("the layers"):
        model.run([(40, 1)])
    assert counted == [39, 1]


@torch.inference_mode()
def test_embeddings_that_are_given(model: Model, counted: list[int]) -> None:
    """They are those of the tokens, times two, so that ids would not do."""
    ids = torch.arange(20)
    rows = model.model.embed_tokens(ids) * 2
    found = model.run([(20, 20)], input_ids=None, inputs_embeds=rows.clone())
    with own_way():
        expected = model.run([(20, 20)], input_ids=None, inputs_embeds=rows.clone())
    assert_same(found, expected)
    assert counted == [20]


@torch.inference_mode()
def test_sliding_windows(model: Model, counted: list[int]) -> None:
    with own_way():
        whole = model.run([(90, 90)])
    for attention in model.attention:
        attention.impl.window = 24
    assert_same_as_own(model, [(90, 90), (70, 1)])
    assert counted == [69, 91]
    assert not torch.equal(model.run([(90, 90)]), whole)


def hooked(model: Any) -> Any:
    return model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: None)


def globally_hooked(_: Any) -> Any:
    return nn.modules.module.register_module_forward_pre_hook(lambda *_: None)


def with_own_forward(model: Any) -> Any:
    mlp = model.layers[0].mlp
    forward = mlp.forward
    mlp.forward = lambda x: forward(x) * 0.5
    return SimpleNamespace(remove=lambda: delattr(mlp, "forward"))


def replaced_activation(model: Any) -> Any:
    mlp = model.layers[1].mlp

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return stock(x) * 2

    stock, mlp.act_fn = mlp.act_fn, Doubled()
    return SimpleNamespace(remove=lambda: setattr(mlp, "act_fn", stock))


def replaced_layer(model: Any) -> Any:
    first, model.layers[0] = model.layers[0], model.layers[1]

    def remove() -> None:
        model.layers[0] = first

    return SimpleNamespace(remove=remove)


def with_hidden_states(model: Any) -> Any:
    model.aux_hidden_state_layers = (1,)
    return SimpleNamespace(remove=lambda: delattr(model, "aux_hidden_state_layers"))


@pytest.mark.parametrize(
    ("change", "has_other_bits"),
    [
        (hooked, False),
        (globally_hooked, False),
        (with_own_forward, True),
        (replaced_activation, True),
        (replaced_layer, True),
        (with_hidden_states, False),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
@torch.inference_mode()
def test_models_that_were_changed_go_their_own_way(
    change: Any, has_other_bits: bool, model: Model, counted: list[int]
) -> None:
    """After the operator was used, and before it is used again."""
    expected = model.run([(20, 20)])
    assert counted == [20]
    handle = change(model.model)
    found: Any = model.run([(20, 20)])
    assert counted == [20]
    if change is with_hidden_states:
        found, (hidden_states,) = found
        assert hidden_states.shape == found.shape
    assert torch.equal(found, expected) != has_other_bits
    handle.remove()
    assert_same(model.run([(20, 20)]), expected)
    assert counted == [20, 20]


@torch.inference_mode()
def test_steps_without_attention_go_their_own_way(model: Model, counted: list[int]) -> None:
    ids = torch.arange(3)
    with set_forward_context(None, model.config, num_tokens=3):
        model.model(ids, ids, None)
    assert counted == []


@torch.inference_mode()
def test_layers_with_other_metadata_go_their_own_way(model: Model, counted: list[int]) -> None:
    """As layers whose caches are of several groups have, of which some have windows."""
    model.attention[1].impl.window = 24
    found = model.run([(60, 60)])
    assert layers_of(model.model) is None
    assert counted == []
    model.attention[1].impl.window = 0
    assert not torch.equal(model.run([(60, 60)]), found)


@pytest.mark.parametrize("model", [("qwen2-0.5b", "bfloat16")], indirect=True)
@torch.inference_mode()
def test_other_parameters_count(model: Model, counted: list[int]) -> None:
    """Those that are written to, that get other memory, and that take the place of others."""
    seen = [model.run([(20, 20)])]
    layer = model.model.layers[1]
    bias, norm = layer.self_attn.qkv_proj.bias, layer.post_attention_layernorm
    bias.data.add_(0.5)
    seen.append(model.run([(20, 20)]))
    bias.data = bias.data * 3
    seen.append(model.run([(20, 20)]))
    norm.weight = nn.Parameter(norm.weight.data * 2, requires_grad=False)
    seen.append(model.run([(20, 20)]))
    assert not any(torch.equal(one, other) for one, other in pairwise(seen))
    assert_same_as_own(model, [(20, 20)])
    layer.self_attn.qkv_proj.bias = None  # as no other layer's
    assert_same_as_own(model, [(20, 20)])
    assert counted == [20] * 6


def test_new_weights_of_a_running_engine(
    model: Model, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, counted: list[int]
) -> None:
    runner: Any = SimpleNamespace(
        vllm_config=model.config, get_model=lambda: model.whole, reload_weights=lambda: None
    )
    let_weights_change(runner)
    with torch.inference_mode():
        before = model.run([(20, 20)])
    folder = changed_checkpoint(tmp_path, tmp_path_factory.mktemp("new") / "model")
    model.whole.load_weights(tensors_of(folder))
    other = Model(folder)
    with torch.inference_mode():
        after = model.run([(20, 20)])
        assert_same(after, other.run([(20, 20)]))
    assert not torch.equal(after, before)
    assert counted == [20] * 3


@torch.inference_mode()
def test_refusals(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer has all of its weights, and each of the four products its segments."""

    def refused(change: Any) -> str:
        def changed(x: Any, weights: Any, sizes: Any, *args: Any, **kwargs: Any) -> Any:
            weights, sizes = change(weights, sizes)
            return portable_decoder_layers(x, weights, sizes, *args, **kwargs)

        monkeypatch.setattr(decoder, "portable_decoder_layers", changed)
        with pytest.raises(RuntimeError, match=r"^portable_decoder_layers: ") as error:
            model.run([(5, 5)])
        return str(error.value)

    assert "weights must be 16 tensors of each layer, but are 47" in refused(
        lambda w, s: (w[:-1], s)
    )
    assert "caches must be one of each of the 2 layers, but are 3" in refused(
        lambda w, s: (w[:-16], s)
    )
    assert "there must be a layer" in refused(lambda w, s: ([], s))
    assert "segments must be of 4 products, but are of 3" in refused(
        lambda w, s: (w, s._replace(segments=s.segments[:3]))
    )
    assert "epsilons must be 3" in refused(lambda w, s: (w, s._replace(epsilons=s.epsilons[:2])))
    assert "sizes must be above 0" in refused(lambda w, s: (w, s._replace(heads=0)))


@pytest.mark.parametrize("shape", ["gemma3-1b", "gpt-neox", "mixtral-8x7b"])
def test_other_models_stay_as_they_are(shape: str, load_model: LoadModel) -> None:
    model, _ = load_model(shape, deterministic=True)
    assert not any(isinstance(vars(one).get("forward"), DecoderForward) for one in model.modules())
