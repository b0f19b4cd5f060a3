"""attach(training=True): the bits of attach(), and weights that may change in any way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.deterministic.models import (
    SHAPES,
    bundled_model,
    in_chunks,
    padded,
    random_model,
    token_ids,
)
from vllm.deterministic import attach, token_log_probs
from vllm.fork_kernels.portable.logits import portable_log_softmax

NO_DROPOUT: dict[str, dict[str, Any]] = {
    "gpt2": {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "opt-125m": {"dropout": 0.0},
}
ROWS = [token_ids(70), token_ids(100, seed=1)]


def stock(shape: str) -> PreTrainedModel:
    return random_model(shape, **NO_DROPOUT.get(shape, {}))


def trained(shape: str = "llama") -> PreTrainedModel:
    return attach(stock(shape), training=True).train()


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    return model(**padded(ROWS)).logits


def fresh_logits(model: Any, shape: str = "llama") -> torch.Tensor:
    """Return the logits of a model that is attached now, with the weights of `model`."""
    other = stock(shape)
    other.load_state_dict(model.state_dict())
    return logits_of(attach(other))


def take_step(model: Any, optimizer: torch.optim.Optimizer | None = None, seed: int = 0) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer.zero_grad()
    (-token_log_probs(model, token_ids(40, seed=seed)).mean()).backward()
    optimizer.step()


@pytest.mark.some(6)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_inference_before_and_after_a_step(shape: str) -> None:
    plain = stock(shape)
    names = [(name, type(module).__name__) for name, module in plain.named_modules()]
    parameters = {name: id(parameter) for name, parameter in plain.named_parameters()}
    model = attach(plain, training=True)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == parameters
    assert [name for name, _ in model.named_modules()] == [name for name, _ in names]
    inference = attach(stock(shape))
    expected = logits_of(inference)
    for mode in (model.train, model.eval):
        assert torch.equal(logits_of(mode()), expected)
        with torch.no_grad():
            found = in_chunks(model, ROWS[1], [40, 41, 100])
        assert torch.equal(found[0], expected[1])
    take_step(model.train())
    assert not torch.equal(logits_of(model), expected)
    assert torch.equal(logits_of(model), fresh_logits(model, shape))


def test_float16() -> None:
    model = attach(bundled_model(torch.float16), training=True).train()
    ids = token_ids(60, vocabulary=4096)
    assert torch.equal(model(ids).logits, attach(bundled_model(torch.float16))(ids).logits)


def change_in_place(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)


def load(model: Any) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def give_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5


def write_to_data(model: Any) -> None:
    """Which raises no version."""
    versions = [parameter._version for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    assert [parameter._version for parameter in model.parameters()] == versions


def swap_rows(model: Any) -> None:
    """Which leaves the sums of all columns."""
    for name in ("model.layers.1.self_attn.o_proj.weight", "lm_head.weight"):
        weight = model.get_parameter(name).data
        weight.copy_(weight.flip(0))


def share_memory(model: Any) -> None:
    """Write as another process that shares the memory would."""
    for parameter in model.parameters():
        parameter.detach().view(torch.int16).numpy()[...] = (
            (parameter.detach() * 0.5).view(torch.int16).numpy()
        )


CHANGES = (change_in_place, load, give_data, write_to_data, swap_rows, share_memory)


@pytest.mark.parametrize(
    ("shape", "change"),
    [
        *(("llama", change) for change in CHANGES),
        ("mixtral-8x7b", give_data),
        ("mixtral-8x7b", write_to_data),
    ],
)
def test_packed_weights_follow_every_change(shape: str, change: Callable[[Any], None]) -> None:
    model = trained(shape)
    before = logits_of(model)
    change(model)
    assert not torch.equal(logits_of(model), before)
    assert torch.equal(logits_of(model), fresh_logits(model, shape))


def test_what_did_not_change_is_not_packed_again() -> None:
    model: Any = trained()
    layers = [layer.self_attn.q_proj for layer in model.model.layers]
    logits_of(model)
    first = [layer.packed for layer in layers]
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(2)  # shares its input with q
    logits_of(model)
    assert [layer.packed is old for layer, old in zip(layers, first, strict=True)] == [False, True]


def test_merged_adapters_are_seen() -> None:
    """PEFT adds them through ``.data``, and takes them away."""
    base = trained()
    config = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    model: Any = get_peft_model(base, config)
    logits_of(model)
    model.merge_adapter()
    assert torch.equal(logits_of(model), fresh_logits(without_adapter(model)))
    with model.disable_adapter():  # takes them away in the next forward
        found = logits_of(model)
    assert torch.equal(found, fresh_logits(without_adapter(model)))


def without_adapter(model: Any) -> Any:
    return copy.deepcopy(model).unload()


def test_two_adapters_take_turns() -> None:
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model: Any = get_peft_model(trained(), config, adapter_name="one")
    first = logits_of(model)
    model.add_adapter("two", config)
    model.set_adapter("two")
    second = logits_of(model)
    model.set_adapter("one")
    assert torch.equal(logits_of(model), first)
    assert not torch.equal(second, first)


def test_a_copy_has_weights_of_its_own() -> None:
    model = trained()
    expected = logits_of(model)
    other = copy.deepcopy(model)
    take_step(model)
    assert torch.equal(logits_of(other), expected)
    take_step(other)
    assert torch.equal(logits_of(other), logits_of(model))


@pytest.mark.parametrize("shape", ["llama", "gemma2-2b"])  # the second caps its logits
def test_a_saved_model_is_the_same_model(shape: str, tmp_path: Path) -> None:
    model = trained(shape)
    take_step(model)
    model.save_pretrained(tmp_path)
    expected = stock(shape).config
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    cap = "final_logit_softcapping"
    assert getattr(loaded.config, cap, None) == getattr(expected, cap, None)
    assert loaded.config.architectures == [type(loaded).__name__]
    assert loaded.config._attn_implementation == "sdpa"
    assert torch.equal(logits_of(attach(loaded.eval())), logits_of(model))
    take_step(model)


def test_tied_embeddings_stay_one_parameter() -> None:
    model: Any = attach(bundled_model(torch.bfloat16), training=True).train()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    take_step(model)
    other: Any = bundled_model(torch.bfloat16)
    other.load_state_dict(model.state_dict())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(logits_of(model), logits_of(attach(other)))


def gradients(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (-token_log_probs(model, ids).mean()).backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("is_reentrant", [True, False])
@pytest.mark.parametrize("shape", ["gemma2-2b", "mixtral-8x7b"])
def test_gradient_checkpointing_gives_equal_gradients(shape: str, is_reentrant: bool) -> None:
    model, ids = trained(shape), token_ids(60)
    expected = gradients(model, ids)
    model.gradient_checkpointing_enable({"use_reentrant": is_reentrant})
    assert_equal(gradients(model, ids), expected)


def test_a_second_backward_pass_and_accumulation() -> None:
    model, ids = trained(), token_ids(60)
    once = gradients(model, ids)
    model.zero_grad()
    loss = -token_log_probs(model, ids).mean()
    loss.backward(retain_graph=True)
    loss.backward()
    assert_equal(
        {n: p.grad for n, p in model.named_parameters()}, {n: 2 * g for n, g in once.items()}
    )


def test_the_loss_of_transformers_has_these_gradients() -> None:
    model, ids = trained(), token_ids(60)
    expected = gradients(model, ids)
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        difference = (parameter.grad - expected[name]).float().norm()
        assert difference <= 0.01 * expected[name].float().norm(), name


@pytest.fixture
def llama() -> PreTrainedModel:
    return trained()


def test_token_log_probs_of_rows_and_of_their_ends(llama: PreTrainedModel) -> None:
    rows = padded(ROWS)
    ids, mask = rows["input_ids"], rows["attention_mask"]
    found = token_log_probs(llama, ids, attention_mask=mask)
    assert found.dtype == torch.float32
    assert found.shape == (2, 99)
    assert not found[0, :30].any()
    table = portable_log_softmax(logits_of(llama)[0, 30:])
    assert torch.equal(found[0, 30:], table[:-1].gather(1, ROWS[0][0, 1:, None])[:, 0])
    last = token_log_probs(llama, ids, attention_mask=mask, logits_to_keep=7)
    assert torch.equal(last, found[:, -7:])


def test_positions_are_counted_from_the_mask(llama: PreTrainedModel) -> None:
    rows = padded(ROWS)
    del rows["position_ids"]
    with torch.no_grad():
        assert torch.equal(llama(**rows).logits, logits_of(llama))
