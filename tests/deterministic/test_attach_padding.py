"""Padding on both ends of rows, as trainers have it: prompts on the left, answers on the right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from tests.deterministic.models import random_model, token_ids
from tests.deterministic.test_attach_training import assert_equal
from tests.deterministic.test_attach_training_gradients import Gradients, errors
from vllm.deterministic import attach, token_log_probs

WIDTH = 72
LEFT = (20, 4, 0)
ROWS = [token_ids(tokens, seed=seed) for seed, tokens in enumerate((30, 66, 3))]
VALUES: dict[str, dict[str, Any]] = {"gemma2-2b": {"sliding_window": 16}}


def make(shape: str, *, training: bool = True) -> PreTrainedModel:
    model = random_model(shape, **VALUES.get(shape, {}))
    return attach(model, training=training).train(training)


def padded(fill: int = 0) -> dict[str, Any]:
    """Return the rows, and one of padding alone, with `fill` as padding."""
    ids = torch.full((len(ROWS) + 1, WIDTH), fill)
    mask = torch.zeros_like(ids)
    for i, (start, row) in enumerate(zip(LEFT, ROWS, strict=True)):
        ids[i, start : start + row.shape[1]] = row
        mask[i, start : start + row.shape[1]] = 1
    return {"input_ids": ids, "attention_mask": mask}


def assert_rows_are_as_alone(model: Any, logits: torch.Tensor) -> None:
    assert logits.isfinite().all()
    for start, row, found in zip(LEFT, ROWS, logits, strict=False):
        expected = model(row).logits[0]
        assert torch.equal(found[start : start + len(expected)], expected)


@torch.no_grad()
@pytest.mark.parametrize("shape", ["gemma2-2b", "mixtral-8x7b"])
def test_tokens_have_the_bits_that_they_have_alone(shape: str) -> None:
    model = make(shape)
    assert_rows_are_as_alone(model, model(**padded()).logits)


@torch.no_grad()
def test_positions_of_padding_are_any() -> None:
    model = make("llama", training=False)
    arguments = padded()
    positions = arguments["attention_mask"].cumsum(1) - 1  # below 0 on the left
    positions[:, -2:] = 1000
    assert_rows_are_as_alone(model, model(**arguments, position_ids=positions).logits)


@torch.no_grad()
def test_rows_that_have_ended_stay_in_a_cache() -> None:
    model = make("gemma2-2b", training=False)  # with a window of 16 tokens
    arguments = padded()
    ids, mask = arguments["input_ids"], arguments["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits, cache = [], None
    for start, end in ((0, 30), (30, 71), (71, WIDTH)):
        done = model(
            ids[:, start:end],
            attention_mask=mask[:, :end],
            position_ids=positions[:, start:end],
            past_key_values=cache,
            use_cache=True,
        )
        logits.append(done.logits)
        cache = done.past_key_values
    assert_rows_are_as_alone(model, torch.cat(logits, dim=1))


@torch.no_grad()
def test_no_token_follows_padding() -> None:
    model = make("llama")
    ids, mask = padded().values()
    done = model(ids, attention_mask=mask, use_cache=True)
    mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
    with pytest.raises(ValueError, match="after padding on the right no tokens may follow"):
        model(
            ids[:, :1],
            attention_mask=mask,
            position_ids=mask.sum(1, keepdim=True) - 1,
            past_key_values=done.past_key_values,
            use_cache=True,
        )


def log_probs(model: Any, **sampling: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return those of the rows together, and of each alone."""
    alone = [token_log_probs(model, row, **sampling)[0] for row in ROWS]
    return token_log_probs(model, **padded(), **sampling), alone


def assert_log_probs_are_as_alone(model: Any, **sampling: Any) -> None:
    found, alone = log_probs(model, **sampling)
    expected = torch.zeros_like(found)
    for start, values, row in zip(LEFT, alone, expected, strict=False):
        row[start : start + len(values)] = values
    assert torch.equal(found, expected)


@torch.no_grad()
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9}])
def test_log_probs_are_those_of_each_row(sampling: dict[str, Any]) -> None:
    assert_log_probs_are_as_alone(make("llama"), **sampling)


@torch.no_grad()
def test_log_probs_with_an_adapter() -> None:
    config = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    model: Any = get_peft_model(make("llama"), config)
    assert_log_probs_are_as_alone(model)


def gradients(model: Any, loss: torch.Tensor) -> Gradients:
    loss.backward()
    found = {name: one.grad.double() for name, one in model.named_parameters()}
    model.zero_grad()
    return found


def test_gradients_are_those_of_the_rows_alone() -> None:
    model = make("mixtral-8x7b")
    together, alone = log_probs(model)
    expected = gradients(model, torch.cat(alone).sum())
    found = gradients(model, together.sum())
    assert max(errors(found, expected).values()) < 0.02


def test_nothing_of_the_padding_reaches_gradients() -> None:
    model: Any = make("llama")
    found, other = (gradients(model, token_log_probs(model, **padded(x)).sum()) for x in (0, 3))
    assert_equal(found, other)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_equal(gradients(model, token_log_probs(model, **padded()).sum()), found)
