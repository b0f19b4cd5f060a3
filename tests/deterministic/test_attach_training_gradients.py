"""Gradients of attach(training=True), beside those of Transformers, measured against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from benchmarks.architectures.cases import Case
from tests.deterministic.models import padded, random_model, random_weights, token_ids
from tests.deterministic.test_attach_training import NO_DROPOUT
from tools.definitions.bases import base_of
from vllm.deterministic import attach, token_log_probs
from vllm.deterministic.attached.attention import Scoring
from vllm.deterministic.attached.gradients.attention import attention
from vllm.deterministic.attached.gradients.log_probs import filtered, log_probs_of
from vllm.deterministic.attached.layout import Layout

ROWS = [token_ids(90), token_ids(70, seed=1)]

Gradients = dict[str, torch.Tensor]


def stock(shape: str, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model of Transformers whose operations are those of the formulas in the papers."""
    model = random_model(shape, **NO_DROPOUT.get(shape, {})).to(dtype)
    model.set_experts_implementation("eager")  # others have no float64
    if shape == "gemma2-2b":
        model.set_attn_implementation("eager")  # others do not cap scores
    return model.train()


def gradients(model: Any, rows: list[torch.Tensor]) -> Gradients:
    """Return float64 gradients of the mean loss of rows, one of them after the other."""
    for row in rows:
        logits = model(row, use_cache=False).logits[0]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        (cross_entropy(logits[:-1], row[0, 1:]) / len(rows)).backward()
    return {name: one.grad.double() for name, one in model.named_parameters()}


def errors(found: Gradients, exact: Gradients) -> dict[str, float]:
    """Return relative errors; where the exact gradient is zero, relative to that of its layer."""
    sizes = {name: float(one.norm()) for name, one in exact.items()}
    largest = max(sizes.values())
    return {
        name: float((found[name] - exact[name]).norm()) / max(sizes[name], 1e-6 * largest)
        for name in exact
    }


@pytest.mark.parametrize(
    "shape", ["llama", "qwen3-0.6b", "gemma2-2b", "mixtral-8x7b", "gpt2", "opt-125m"]
)
def test_errors_are_about_those_of_transformers(shape: str) -> None:
    exact = gradients(stock(shape, torch.float64), ROWS)
    theirs = errors(gradients(stock(shape, torch.bfloat16), ROWS), exact)
    attached = attach(random_model(shape, **NO_DROPOUT.get(shape, {})), training=True)
    ours = errors(gradients(attached.train(), ROWS), exact)
    assert not {
        name: (ours[name], theirs[name]) for name in ours if ours[name] > 1.25 * theirs[name]
    }
    assert sorted(ours.values())[len(ours) // 2] < sorted(theirs.values())[len(theirs) // 2]


@pytest.mark.parametrize(
    "name", ["gpt_oss", "glm4_moe", "cohere", "granitemoe", "qwen2_moe", "deepseek_v2"]
)
def test_errors_of_other_layers(name: str) -> None:
    """Sinks and clamped experts, sigmoids of routers, neighbours in pairs, gates of experts."""

    def model(dtype: torch.dtype) -> Any:
        config = Case(base_of(name)).config
        config.num_hidden_layers = 2
        made = random_weights(config, torch.bfloat16).to(dtype)
        made.set_experts_implementation("eager")
        made.set_attn_implementation("eager")
        return made

    rows = [row % 300 for row in ROWS]
    exact = gradients(model(torch.float64).train(), rows)
    theirs = errors(gradients(model(torch.bfloat16).train(), rows), exact)
    attached = attach(model(torch.bfloat16), training=True)
    ours = errors(gradients(attached.train(), rows), exact)
    middle = len(ours) // 2
    assert sorted(ours.values())[middle] < 1.1 * sorted(theirs.values())[middle]
    assert max(ours.values()) < 2 * max(theirs.values())


@pytest.mark.parametrize("shape", ["llama", "gemma2-2b", "gpt2"])
def test_padding_changes_no_gradient_but_the_order_of_sums(shape: str) -> None:
    model = attach(random_model(shape, **NO_DROPOUT.get(shape, {})), training=True).train()
    alone = gradients(model, ROWS)
    model.zero_grad()
    arguments = padded(ROWS)
    logits = model(**arguments, use_cache=False).logits
    for logits_of_row, row in zip(logits, ROWS, strict=True):
        own = logits_of_row[-row.shape[1] :]
        (cross_entropy(own[:-1], row[0, 1:]) / len(ROWS)).backward(retain_graph=True)
    together = {name: one.grad.double() for name, one in model.named_parameters()}
    assert max(errors(together, alone).values()) < 0.02


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize(
    ("window", "soft_cap", "start", "end"),
    [(0, 0.0, 0, 30), (7, 0.0, 5, 30), (0, 2.0, 0, 30), (7, 2.0, 5, 26), (0, 0.0, 5, 26)],
)
def test_attention_has_the_gradient_of_its_formula(
    window: int, soft_cap: float, start: int, end: int, has_sinks: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 30, 16), (2, 2, 30, 16), (2, 2, 30, 16))
    inputs = [
        torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes
    ]
    layout = Layout(torch.tensor([0, start]), torch.tensor([30, end]), 0, 30, 30, window or 30)
    if has_sinks:
        inputs.append(torch.randn(4, generator=generator).bfloat16().requires_grad_())
    one, two, three, *sinks = inputs
    result = attention(one, two, three, layout, Scoring(0.25, window, soft_cap), *sinks)
    factors = torch.randn(result.shape, generator=generator)
    found = torch.autograd.grad((result * factors).sum(), inputs)
    wide = [one.detach().double().requires_grad_() for one in inputs]
    query, key, value, *sinks = wide
    scores = query @ key.repeat_interleave(2, 1).mT * 0.25
    if soft_cap:
        scores = (scores / soft_cap).tanh() * soft_cap
    distance = torch.arange(30)[:, None] - torch.arange(30)
    seen = (distance >= 0) & (distance < (window or 30)) & (torch.arange(30) >= start)
    seen = torch.stack(
        (seen | (distance == 0), (distance >= 0) & (distance < (window or 30)))
    ).flip(0)
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    if has_sinks:
        scores = torch.cat((scores, sinks[0].view(1, 4, 1, 1).expand(2, 4, 30, 1)), dim=-1)
    weights = scores.softmax(-1)[..., :30]
    expected = (weights @ value.repeat_interleave(2, 1)).transpose(1, 2) * factors
    is_padding = (torch.arange(30) < start) | (torch.arange(30) >= end)
    expected[1, is_padding] = 0
    for ours, exact in zip(found, torch.autograd.grad(expected.sum(), wide), strict=True):
        assert (ours - exact).norm() < 0.01 * exact.norm()
    assert not any(gradient[1, :, is_padding].any() for gradient in found[:3])


def test_log_probs_after_temperature_top_k_and_top_p() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 60, generator=generator).requires_grad_()
    kept = filtered(logits, 0.7, 20, 0.8)
    ids = kept.detach().topk(3).indices[:, 2]
    (found,) = torch.autograd.grad(log_probs_of(kept, ids).sum(), logits)
    wide = logits.detach().double().requires_grad_()
    masked = (wide / 0.7).masked_fill(kept.detach() == -torch.inf, -torch.inf)
    expected = masked.log_softmax(-1).gather(1, ids[:, None]).sum()
    torch.testing.assert_close(found.double(), torch.autograd.grad(expected, wide)[0])
    assert 3 <= int((kept > -torch.inf).sum(-1).min()) <= 20


def test_a_token_that_is_removed_has_no_probability() -> None:
    model = attach(random_model("llama"), training=True).train()
    ids = token_ids(20)
    found = token_log_probs(model, ids, top_k=2)
    assert (found == -torch.inf).any()
    assert (found[found > -torch.inf] <= 0).all()
