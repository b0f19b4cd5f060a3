"""``vllm parity``: what it finds is what is there, and what it shows is what it found."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engines import MODEL
from vllm.parity import Setting, compare_with_hf, drift, html, terminal
from vllm.parity.causes import likely_cause
from vllm.parity.differences import compare, first_difference
from vllm.parity.drift import LayerDrift
from vllm.parity.machine import machine
from vllm.parity.report import CACHED, PADDED, Report, Run
from vllm.parity.setting import PROMPTS
from vllm.parity.sides import Answer

SETTING = Setting(str(MODEL), "bfloat16", PROMPTS[:3], max_new_tokens=8)


# --- differences of answers ----------------------------------------------------------------------
def answer(tokens: list[int], *, shift: float = 0.0, has_logits: bool = True) -> Answer:
    """Six tokens a step; `shift` is added to the logit of token 1."""
    logits = torch.arange(6.0).repeat(len(tokens), 1) / 4
    logits[:, 1] += shift
    logprobs = [dict(enumerate(row.tolist())) for row in torch.log_softmax(logits, dim=-1)]
    return Answer(tokens, logprobs, logits.numpy() if has_logits else None)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None), ([3], [], 0)],
)
def test_first_difference(a: list[int], b: list[int], expected: int | None) -> None:
    assert first_difference(a, b) == expected


def test_equal_answers() -> None:
    found = compare(answer([5, 5, 4]), answer([5, 5, 4]))
    assert found.first_difference is None
    assert found.candidates == []
    assert (found.num_equal, found.num_compared, found.max_difference) == (18, 18, 0.0)


def test_the_step_at_which_answers_part() -> None:
    found = compare(answer([5, 4, 4]), answer([5, 1, 4], shift=3.0))
    assert found.first_difference == 1
    assert (found.num_equal, found.num_compared) == (10, 12), "two steps, token 1 differs in each"
    assert found.max_difference == 3.0
    assert {one.token_id: one.chosen_by for one in found.candidates}[4] == "a"
    by_token = {one.token_id: one for one in found.candidates}
    assert by_token[1].chosen_by == "b"
    assert by_token[4].probability_a == pytest.approx(
        float(torch.softmax(torch.arange(6.0) / 4, 0)[4])
    )
    ours = [one.probability_b or 0.0 for one in found.candidates]
    assert ours[0] == max(ours), "the likeliest first"


def test_zeros_of_both_signs_have_other_bits() -> None:
    one = Answer([0], [{0: 0.0}], np.array([[0.0, 1.0]], np.float32))
    other = Answer([0], [{0: 0.0}], np.array([[-0.0, 1.0]], np.float32))
    assert (compare(one, other).num_equal, compare(one, other).num_compared) == (1, 2)


def test_without_logits_logprobs_are_compared() -> None:
    engine = answer([5, 5], has_logits=False)
    found = compare(answer([5, 5]), engine)
    assert (found.num_equal, found.num_compared) == (12, 12)
    engine.logprobs[1].pop(0)
    engine.logprobs[0][5] += 0.5
    found = compare(answer([5, 5]), engine)
    assert (found.num_equal, found.num_compared) == (10, 11)
    assert found.max_difference == pytest.approx(0.5)


def test_an_answer_that_ends_sooner() -> None:
    found = compare(answer([5, 4]), answer([5]))
    assert found.first_difference == 1
    assert {one.chosen_by for one in found.candidates} == {"a", ""}


# --- drift ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()


def test_layers_are_those_of_transformers(model: PreTrainedModel) -> None:
    """Its own record of hidden states: all but the last, which is normed."""
    tokens = list(range(10, 30))
    found = drift.hf_outputs(model, tokens)
    with torch.inference_mode():
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    for i, expected in enumerate(states[1:-1]):
        assert torch.equal(found[str(i)], expected[0].float())
    assert list(found) == [*(str(i) for i in range(len(states) - 1)), drift.LOGITS]


def test_cached_tokens_come_one_by_one(model: PreTrainedModel) -> None:
    tokens = list(range(10, 30))
    at_once = drift.hf_outputs(model, tokens)
    cached = drift.hf_outputs(model, tokens, num_cached=12)
    found = drift.compare_layers(at_once, cached)
    assert all(len(output) == len(tokens) for output in cached.values())
    assert any(one.maximum > 0 for one in found), "bfloat16 rounds otherwise, row by row"
    assert drift.first_different_layer(drift.compare_layers(at_once, at_once)) is None


def test_a_padded_text_is_the_first_of_its_batch(model: PreTrainedModel) -> None:
    """In float32, where padding is no more than rounding, unlike another position or mask."""
    model = deepcopy(model).float()
    tokens = list(range(10, 30))
    alone = drift.hf_outputs(model, tokens, num_cached=12)
    padded = drift.hf_outputs(model, tokens, num_cached=12, beside=2 * tokens)
    for one in drift.compare_layers(alone, padded):
        assert one.maximum < 1e-3


def test_the_operation_that_was_changed_is_found(model: PreTrainedModel) -> None:
    tokens = list(range(10, 30))

    def start(one: torch.nn.Module) -> None:
        drift.start_operations(one, 2)

    before = drift.hf_outputs(model, tokens, start)
    assert drift.first_different_operation(before, before) is None
    projection = model.get_submodule("model.layers.2.mlp.down_proj")
    handle = projection.register_forward_hook(lambda _, __, output: output * 1.01)
    try:
        after = drift.hf_outputs(model, tokens, start)
        layers = drift.compare_layers(
            drift.hf_outputs(model, tokens), drift.hf_outputs(model, tokens)
        )
    finally:
        handle.remove()
    assert drift.first_different_operation(before, after) == "mlp.down_proj"
    assert drift.first_different_layer(layers) is None


def test_fused_projections_are_those_of_their_parts() -> None:
    parts = {f"attn.{name}_proj": torch.full((2, 3), float(i)) for i, name in enumerate("qkv")}
    fused = torch.cat(list(parts.values()), -1)
    assert drift.first_different_operation(parts, {"attn.qkv_proj": fused}) is None
    assert drift.first_different_operation(parts, {"attn.qkv_proj": fused + 1}) == "attn.qkv_proj"


def test_a_residual_that_vllm_adds_later_is_added() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, 2 * x

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([Layer()])
    drift.start_layers(model)
    model.layers[0](torch.ones(3, 4))
    assert torch.equal(drift.take(model)["0"], torch.full((3, 4), 3.0))


def test_a_norm_returns_the_residual_beside_its_output() -> None:
    class Norm(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, 2 * x

    model, layer = torch.nn.Module(), torch.nn.Module()
    layer.norm = Norm()
    model.layers = torch.nn.ModuleList([layer])
    drift.start_operations(model, 0)
    layer.norm(torch.ones(3, 4))
    assert torch.equal(drift.take(model)["norm"], torch.ones(3, 4))


def test_a_model_without_layers() -> None:
    with pytest.raises(ValueError, match="Linear has no list of layers"):
        drift.decoder_layers(torch.nn.Linear(2, 2))


# --- causes --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mode", "dtype", "generation", "operation", "sentence"),
    [
        ("upstream", "bfloat16", None, "self_attn.qkv_proj", r"fused .*split_qkv=True removes it"),
        ("upstream", "bfloat16", None, "self_attn.o_proj", r"attention .*hf_compat=True removes"),
        ("upstream", "bfloat16", None, "input_layernorm", r"norm adds .*hf_compat=True removes"),
        ("hf_compat", "float16", None, "mlp.down_proj", r'hf_compat="exact" removes it'),
        ("hf_compat", "float32", None, None, r'Two tokens were .*hf_compat="exact" removes it'),
        ("upstream", "float32", {"repetition_penalty": 1.2}, None, r"rules for repetition_penalty"),
        ("exact", "float32", None, None, "please report it"),
        ("deterministic", "bfloat16", None, "input_layernorm", "the same on every machine"),
    ],
)
def test_causes(
    mode: str, dtype: str, generation: Any, operation: str | None, sentence: str
) -> None:
    setting = replace(SETTING, dtype=dtype, generation=generation)
    different = compare(answer([5, 4]), answer([5, 1], shift=3.0))
    found = likely_cause(setting, mode, [different], operation)
    assert found is not None
    assert re.search(sentence, found), found
    equal = compare(answer([5]), answer([5]))
    assert likely_cause(setting, mode, [equal], operation) is None


# --- the whole -----------------------------------------------------------------------------------
def test_hf_compat_in_bfloat16_beside_hugging_face() -> None:
    report = compare_with_hf(SETTING, modes=["hf_compat"])
    (run,) = report.runs
    assert (run.num_equal, run.share_of_bits, run.cause) == (3, 1.0, None)
    assert run.comparisons[0].num_compared == 8 * 4096
    assert all(one.has_equal_bits for one in run.prompt_drift + run.decode_drift)
    assert len(run.prompt_drift) == 6
    for own in report.hf_drift["bfloat16"].values():
        assert len(own) == 7, "the logits, too"
        assert own[-1].maximum > 0
    assert json.loads(report.as_json())["runs"][0]["mode"] == "hf_compat"


@pytest.fixture
def report() -> Report:
    """One run that differs and one that does not; texts that need escaping."""
    different = compare(answer([5, 4, 1]), answer([5, 1, 1], shift=3.0))
    equal = compare(answer([5, 4, 1]), answer([5, 4, 1]))
    layers = [LayerDrift(0.0, 0.0, True), LayerDrift(1e-3, 2e-5, False)]
    none = [LayerDrift(0.0, 0.0, True)] * 2
    setting = replace(SETTING, prompts=("[b]<i>&", "two"), generation={"top_k": 5})
    first = Run("upstream", "bfloat16", [different, equal], layers, layers, 1, "mlp", "In [x] <y>.")
    second = Run("exact", "bfloat16", [equal, equal], none, none, None, None, None)
    texts = {i: f"<{i}>[/]" for i in range(6)}
    own = {CACHED: [*layers, LayerDrift(0.25, 0.01, False)], PADDED: [*none, none[0]]}
    return Report(setting, machine(), texts, {"bfloat16": own}, [first, second])


def test_terminal(report: Report) -> None:
    out = StringIO()
    terminal.show(report, Console(file=out, width=200))
    text = out.getvalue()
    for part in ("1 of 2", "2 of 2", "100.00%", "token 1 after [b]<i>&", "'<4>[/]'", "In [x] <y>.",
                 "top_k=5", "layer 1, mlp", "0.001 (2e-05)", "0.25 (0.01)"):  # fmt: skip
        assert part in text, part


def test_page_needs_nothing_else(report: Report) -> None:
    text = html.report_page(report)
    assert "<script" not in text
    assert "http" not in text
    assert "&lt;4&gt;[/]" in text
    assert "[b]&lt;i&gt;&amp;" in text
    assert text.count("<svg") == 2
    assert text.count("<polyline") == 6
    assert ">logits</text>" in text
    assert re.findall(r"<title>(\d)</title>", text) == list("0100000000" + 10 * "0")


def test_a_page_without_differences(report: Report) -> None:
    none = [LayerDrift(0.0, 0.0, True)] * 2
    equal = replace(report, runs=report.runs[1:], hf_drift={"bfloat16": {CACHED: none}})
    text = html.report_page(equal)
    assert "all answers are equal" in text
    assert "all layers have equal bits" in text
