"""What attach(training=True) and token_log_probs refuse, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from tests.deterministic.models import random_model, token_ids
from vllm.deterministic import attach, token_log_probs
from vllm.deterministic.guard import InexactOperationError

LORA: dict[str, Any] = {"r": 4, "target_modules": ["q_proj"]}


def trained() -> PreTrainedModel:
    return attach(random_model("llama"), training=True).train()


def with_jitter() -> PreTrainedModel:
    model: Any = random_model("mixtral-8x7b")
    model.model.layers[1].mlp.jitter_noise = 0.1
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: random_model("gpt2"), r"transformer\.drop\.p = 0\.1: dropout draws at random"),
        (lambda: random_model("opt-125m"), r"\.dropout = 0\.1: dropout draws at random"),
        (
            lambda: random_model("llama", attention_dropout=0.5),
            r"layers\.0\.self_attn\.attention_dropout = 0\.5",
        ),
        (lambda: trained(), "it already has the kernels"),
        (
            lambda: get_peft_model(random_model("llama"), LoraConfig(**LORA)).get_base_model(),
            "attach the model first, and then call get_peft_model",
        ),
    ],
)
def test_models_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        attach(make(), training=True)


def test_a_peft_model_is_refused_with_the_right_order() -> None:
    model: Any = get_peft_model(random_model("llama"), LoraConfig(**LORA))
    with pytest.raises(TypeError, match="Attach the model first, and then call get_peft_model"):
        attach(model, training=True)


def test_what_is_drawn_in_training_only_is_found() -> None:
    with pytest.raises(InexactOperationError, match=r"layers\.1\.mlp: it calls aten::uniform_"):
        attach(with_jitter(), training=True)


def test_models_in_training_are_told_about_the_argument() -> None:
    with pytest.raises(ValueError, match=r"call eval\(\), or attach\(model, training=True\)"):
        attach(random_model("llama").train())


def add_dropout(model: Any) -> Any:
    model.model.layers[0].mlp.act_fn = nn.Dropout(0.2)
    return model


def add_attention_dropout(model: Any) -> Any:
    model.model.layers[0].self_attn.attention_dropout = 0.2
    return model


def lora(**values: Any) -> Callable[[Any], Any]:
    return lambda model: get_peft_model(model, LoraConfig(**{**LORA, **values}))


def two_adapters(model: Any) -> Any:
    config = LoraConfig(**LORA)
    model = get_peft_model(model, config, adapter_name="one")
    model.add_adapter("two", config)
    model.base_model.set_adapter(["one", "two"])
    return model


def another_layer(model: Any) -> Any:
    model.model.layers[0].mlp.act_fn = nn.Linear(4, 4)
    return model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_dropout, r"act_fn\.p = 0\.2: dropout draws at random"),
        (add_attention_dropout, r"attention_dropout = 0\.2: dropout"),
        (lora(lora_dropout=0.1), r"q_proj\.lora_dropout\.default\.p = 0\.1: dropout"),
        (lora(use_dora=True), "q_proj with the adapter default: only plain LoRA is known"),
        (lora(target_modules=["lm_head"]), "lm_head: an adapter of an embedding, the head"),
        (lora(target_modules=["embed_tokens"]), r"embed_tokens .*only LoRA of linear layers"),
        (lora(modules_to_save=["k_proj"]), "a copy of a layer that shares its input"),
        (two_adapters, "adapters one and two at once: an engine adds one"),
        (lambda model: model.float(), r"embed_tokens in torch\.float32: a product has 15 bits"),
        (another_layer, r"act_fn \(Linear\): it is not specified"),
    ],
)
def test_what_is_added_later_is_refused(change: Callable[[Any], Any], reason: str) -> None:
    model = change(trained()).train()
    with pytest.raises(ValueError, match=reason):
        model(token_ids(5))


def test_dropout_may_be_there_in_evaluation_mode() -> None:
    model = add_attention_dropout(trained()).eval()
    assert torch.equal(model(token_ids(5)).logits, trained()(token_ids(5)).logits)


def test_autocast_is_refused() -> None:
    model = trained()
    with torch.autocast("cpu"):
        with pytest.raises(ValueError, match=r"torch\.autocast: it chooses the dtype"):
            model(token_ids(5))
        with pytest.raises(ValueError, match=r"torch\.autocast"):
            token_log_probs(model, token_ids(5))


def test_log_probs_need_an_attached_model() -> None:
    with pytest.raises(ValueError, match=r"not LlamaForCausalLM: call vllm.deterministic.attach"):
        token_log_probs(random_model("llama"), token_ids(5))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"temperature": 0.0}, r"temperature=0\.0, top_p=None: a temperature must be above 0"),
        ({"top_p": 0.0}, r"top_p=0\.0: a temperature"),
        ({"top_k": 0.5}, r"top_k=0\.5 must be a whole number"),
        ({"top_k": True}, r"top_k=True must be"),
        ({"logits_to_keep": 5}, "5 of 5 tokens were asked for"),
        ({"attention_mask": torch.tensor([[1, 1, 0, 0, 1]])}, "there is some between the tokens"),
    ],
)
def test_arguments_of_log_probs_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        token_log_probs(trained(), token_ids(5), **arguments)


@pytest.mark.parametrize(
    ("ids", "mask", "reason"),
    [
        ([5, 6, 7], None, r"input_ids is of type list: it must be a tensor \[batch, tokens\]"),
        (token_ids(5)[0], None, r"input_ids is a tensor \[5\]: it must be"),
        (token_ids(5), torch.ones(1, 3), r"is a tensor \[1, 3\], and .* \[1, 5\]: both"),
        (token_ids(5), [[1] * 5], "attention_mask is of type list, and input_ids a tensor"),
    ],
)
def test_shapes_of_log_probs_are_refused(ids: Any, mask: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        token_log_probs(trained(), ids, attention_mask=mask)
