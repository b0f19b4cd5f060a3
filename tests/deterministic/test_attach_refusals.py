"""What attach() and an attached model refuse, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    GPTJConfig,
    Llama4TextConfig,
    PhimoeConfig,
    PreTrainedModel,
    StaticCache,
)

from tests.deterministic.models import (
    VOCABULARY,
    padded,
    random_model,
    random_weights,
    token_ids,
)
from vllm.deterministic import attach
from vllm.deterministic.guard import InexactOperationError

pytestmark = pytest.mark.fast

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": None,
}


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@cache
def llama() -> PreTrainedModel:
    return attach(random_model("llama"))


def training(model: PreTrainedModel) -> PreTrainedModel:
    return model.train()


def quantised(model: PreTrainedModel) -> PreTrainedModel:
    model.config.quantization_config = {"quant_method": "awq"}
    return model


def hooked(name: str, model: PreTrainedModel) -> PreTrainedModel:
    model.get_submodule(name).register_forward_pre_hook(lambda module, args: args)
    return model


def with_own_forward(name: str, model: PreTrainedModel) -> PreTrainedModel:
    module: Any = model.get_submodule(name)
    forward = module.forward
    module.forward = lambda x: forward(x) * 0.5
    return model


class _Scaled(nn.Module):
    """Something with a parameter that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(256, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


class _Mean(nn.Module):
    """Something without one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(-1, keepdim=True)


class _Third(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 3


def with_dropout_as(module: nn.Module) -> PreTrainedModel:
    model: Any = random_model("gpt2")
    model.transformer.drop = module
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: random_model("llama", torch.float32), "is torch.float32, and the kernels are for"),
        (lambda: training(random_model("llama")), "it is in training mode"),
        (lambda: quantised(random_model("llama")), "it is quantised"),
        (
            lambda: random_weights(PhimoeConfig(**SMALL, num_local_experts=4)),
            r"mlp[\w.]* \(PhimoeTopKRouter\): it is not specified",
        ),
        (
            lambda: random_weights(Llama4TextConfig(**SMALL, num_local_experts=4)),
            r"\(Llama4\w+\): it is not specified",
        ),
        (
            lambda: hooked("model.layers.1.mlp.down_proj", random_model("llama")),
            r"take model\.layers\.1\.mlp\.down_proj: it has a hook or a forward of its own",
        ),
        (
            lambda: with_own_forward("model.layers.0.mlp.up_proj", random_model("llama")),
            r"take model\.layers\.0\.mlp\.up_proj: it has a hook or a forward of its own",
        ),
        (lambda: with_dropout_as(_Scaled()), r"transformer\.drop \(_Scaled\): it is not specified"),
        (
            lambda: random_weights(
                GPTJConfig(n_embd=64, n_layer=1, n_head=2, vocab_size=VOCABULARY)
            ),
            "apply_rotary_pos_emb has other arguments than q, k, cos, sin",
        ),
    ],
)
def test_models_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        attach(make())
    assert str(raised.value).startswith("vllm.deterministic.attach cannot take ")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: with_dropout_as(_Mean()), r"compute transformer\.drop: it calls aten::mean"),
        (
            lambda: with_dropout_as(_Third()),
            r"compute transformer\.drop: it calls aten::div, by a single number",
        ),
    ],
)
def test_operations_between_modules_are_found(make: Any, reason: str) -> None:
    with pytest.raises(InexactOperationError, match=reason):
        attach(make())


def test_hooks_of_modules_that_stay_are_called() -> None:
    seen = []
    model = random_model("llama")
    model.get_submodule("model.layers.0").register_forward_hook(lambda *_: seen.append(1))
    attach(model)
    seen.clear()
    model(token_ids(4))
    assert seen == [1]


def test_only_models_of_transformers_are_taken() -> None:
    with pytest.raises(TypeError, match="takes a PreTrainedModel"):
        attach(nn.Linear(2, 2))


PACKED = torch.tensor([[0, 1, 2, 0, 1, 2]])


def padded_between_tokens() -> dict[str, Any]:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, 3:5] = 0
    return {"input_ids": token_ids(8).expand(2, -1), "attention_mask": mask}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (padded_between_tokens(), "only padding on the left and on the right is specified"),
        (
            {"input_ids": token_ids(6), "position_ids": PACKED, "use_cache": False},
            "its mask is not that of causal attention",
        ),
        (
            {"input_ids": token_ids(6), "position_ids": PACKED},
            "must count from 0 at the first token of each row",
        ),
        (
            {"input_ids": token_ids(6), "position_ids": torch.arange(2, 8)[None]},
            "must count from 0 at the first token of each row",
        ),
        (
            {"input_ids": token_ids(6), "attention_mask": torch.zeros(1, 1, 6, 6)},
            "only 2D masks",
        ),
        (
            {"input_ids": token_ids(6), "attention_mask": torch.ones(1, 9)},
            "it has 9 columns, but there are 6 tokens",
        ),
        ({"input_ids": token_ids(6), "output_attentions": True}, "no table of weights"),
    ],
)
def test_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        llama()(**arguments)


def test_positions_are_counted_where_none_are_given() -> None:
    arguments = padded([token_ids(4), token_ids(8)])
    expected = llama()(**arguments).logits
    del arguments["position_ids"]
    assert torch.equal(llama()(**arguments).logits, expected)


def test_a_cache_with_room_is_refused() -> None:
    cache = StaticCache(llama().config, max_cache_len=32)
    with pytest.raises(ValueError, match="as DynamicCache"):
        llama()(token_ids(6), past_key_values=cache, use_cache=True)


def test_an_attached_model_is_not_trained_or_saved_or_attached_again() -> None:
    model = attach(random_model("llama"))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ValueError, match="cannot be saved"):
        model.save_pretrained("unused")
    with pytest.raises(ValueError, match="already has the kernels"):
        attach(model)
    with pytest.raises(ValueError, match=r"training mode: call eval\(\)"):
        model.train()(token_ids(4))


@pytest.mark.parametrize("layer", ["q_proj", "lm_head"])
def test_adapters_of_an_attached_model_are_refused(layer: str) -> None:
    """By PEFT, to which a layer without its weight is no linear one."""
    with pytest.raises(ValueError, match=r"Target module (Linear|Head)Form\(\) is not supported"):
        get_peft_model(attach(random_model("llama")), LoraConfig(target_modules=[layer]))


@pytest.mark.parametrize("family", ["llama", "gemma2-2b"])  # the second caps its logits
def test_a_backward_pass_is_refused(family: str) -> None:
    model = attach(random_model(family))
    with torch.enable_grad():
        outputs = model(token_ids(6), labels=token_ids(6))
        for result in (outputs.loss, outputs.logits.sum()):
            with pytest.raises(ValueError, match=r"^an attached model is for inference, .* attach"):
                result.backward()
    assert torch.equal(model(token_ids(6)).logits, outputs.logits)


def test_gradients_that_are_asked_for_are_refused() -> None:
    """PyTorch would compute wrong ones."""
    model = attach(random_model("llama")).requires_grad_()
    with (
        torch.enable_grad(),
        pytest.raises(ValueError, match=r"^an attached model is for inference"),
    ):
        model(token_ids(6)).logits.sum().backward()


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("part", ["", "model", "model.layers.0.mlp"])
def test_weights_cannot_be_loaded(part: str, is_strict: bool) -> None:
    """And nothing is changed before that is said, not even the embedding."""
    model, other = llama(), random_model("llama")
    before = model(token_ids(6)).logits
    for parameter in other.parameters():
        parameter.data.zero_()
    with pytest.raises(ValueError, match=r"^an attached model takes no weights, .* attach that\.$"):
        model.get_submodule(part).load_state_dict(
            other.get_submodule(part).state_dict(), strict=is_strict
        )
    assert torch.equal(model(token_ids(6)).logits, before)


def other_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def other_head(model: Any) -> None:
    outputs, inputs = model.model.embed_tokens.weight.shape
    model.lm_head = nn.Linear(inputs, outputs, bias=False).bfloat16()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.float(), r"model in torch\.float32: .* leave it in torch\.bfloat16"),
        (lambda model: model.half(), r"model in torch\.float16: .* leave it in torch\.bfloat16"),
        (other_attention, "attn_implementation='eager': attention has another order of sums"),
        (other_head, r"lm_head \(Linear\): it is not specified"),
    ],
)
def test_what_is_changed_later_is_refused(change: Callable[[Any], Any], reason: str) -> None:
    model = attach(random_model("llama"))  # one of its own
    change(model)
    with pytest.raises(ValueError, match=reason):
        model(token_ids(5))


def test_positions_beyond_what_frequencies_are_for() -> None:
    factors = [2.0] * 48
    parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": 64,
    }
    stock = random_model(
        "phi3-mini",
        max_position_embeddings=1024,
        original_max_position_embeddings=64,
        rope_parameters=parameters,
    )
    model = attach(stock, max_length=64)
    model(token_ids(64))
    with pytest.raises(ValueError, match="a sequence of 65 tokens: its rotary frequencies are"):
        model(token_ids(65))
