"""What is found out about configurations, each beside what `generate()` and an engine answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn
from transformers import (
    Gemma4TextConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from tests.deterministic.states_models import CHANGES, config_of
from tests.twin.cases import finding_of
from vllm.hf_layers import replacement
from vllm.hf_layers.models import ROWS
from vllm.model_executor.layers.attention import Attention
from vllm.twin import examination, transformers_side

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("config", "module", "field"),
    [
        (OlmoeConfig(clip_qkv=0.3), "model.layers.0.self_attn", "clip_qkv=0.3"),
        (OlmoeConfig(norm_topk_prob=True), "model.layers.0.mlp", "norm_topk_prob=True"),
        (GemmaConfig(attention_bias=True), "model.layers.0.self_attn", "attention_bias=True"),
        (Qwen3Config(attention_bias=True), "model.layers.0.self_attn", "attention_bias=True"),
    ],
)
def test_a_field_that_vllm_ignores_is_named(
    config: PreTrainedConfig, module: str, field: str
) -> None:
    finding = finding_of(config)
    assert (finding.agreement, finding.module, finding.field) == ("differs", module, field)
    assert finding.difference > 0.05 * finding.spread
    assert f"from {module} on, because of {field} (" in str(finding)


def test_a_difference_that_is_small_is_one() -> None:
    """vLLM's gate of each layer's embeddings has the approximation, whatever the field says: logits
    differ by 1e-4 of their spread, 20 times as much as rounding explains.
    """
    finding = finding_of(Gemma4TextConfig(hidden_activation="gelu"))
    assert (finding.agreement, finding.field) == ("differs", "hidden_activation='gelu'")
    assert finding.difference < 1e-3 * finding.spread


def _stops(*_: Any) -> None:
    raise RuntimeError


def test_a_difference_stays_one_whatever_the_search_for_its_cause_meets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_cause_of_length", "first_module"):
        monkeypatch.setattr(examination, name, _stops)
    assert finding_of(OlmoeConfig(clip_qkv=0.3)).agreement == "differs"


def _in_16_bits(change: Callable[[nn.Module], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change what hf_compat makes of an engine's layers in 16 bits, and not in float32."""

    def follow(model: nn.Module, config: PreTrainedConfig) -> None:
        layers_of_before(model, config)
        change(model)

    layers_of_before = replacement._follow_hf
    monkeypatch.setattr(replacement, "_follow_hf", follow)


def _double_scales(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, Attention):
            layer.impl.scale *= 2


def test_a_difference_of_the_engines_own_layers_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 does not show what is chosen for 16 bits alone."""
    _in_16_bits(_double_scales, monkeypatch)
    finding = finding_of(LlamaConfig(), "bfloat16")
    assert (finding.agreement, finding.dtype, finding.module) == ("differs", "bfloat16", "")
    assert "(logits of a small random model in bfloat16 differ by" in str(finding)
    assert finding_of(LlamaConfig()).agreement == "rounding"


def test_an_engine_whose_own_layers_stop_is_not_called_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _in_16_bits(_stops, monkeypatch)
    assert finding_of(LlamaConfig(), "bfloat16").reason == (
        "vLLM does not run its twin: RuntimeError: raise RuntimeError"
    )


def test_the_side_that_stops_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = finding_of(LlamaConfig(hidden_act="gelu"))
    assert finding.agreement == "unknown"
    assert finding.reason.startswith("vLLM does not run its twin: ValueError: Unsupported activ")
    monkeypatch.setattr(transformers_side, "load", _stops)
    assert finding_of(LlamaConfig()).reason == (
        "Transformers does not run its twin: RuntimeError: raise RuntimeError"
    )


@pytest.mark.parametrize(
    "config",
    [LlamaConfig(), GPT2Config(), MixtralConfig()],
    ids=lambda config: config.model_type,
)
def test_definitions_that_agree_have_equal_bits_in_16_bits(config: PreTrainedConfig) -> None:
    assert finding_of(config, "bfloat16").agreement == "bits"


def test_in_float32_they_round_otherwise() -> None:
    finding = finding_of(LlamaConfig())
    assert finding.agreement == "rounding"
    assert 0 < finding.difference < 1e-4 * finding.spread


def test_deterministic_mode_has_the_bits_of_an_attached_model() -> None:
    config = LlamaConfig(num_key_value_heads=8, num_attention_heads=32)
    assert finding_of(config, "bfloat16", deterministic=True).agreement == "bits"


def test_deterministic_layers_with_states_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own layers have the gate of Falcon-H1 before the norm, whatever its field says."""
    config = config_of("falcon_h1, gated norm")
    assert finding_of(config).agreement == "differs"
    assert finding_of(config, "bfloat16", deterministic=True).agreement == "bits"
    formula = ROWS["falcon_h1"].mixer
    assert formula is not None
    other = replace(ROWS["falcon_h1"], mixer=replace(formula, norm_first=""))
    monkeypatch.setitem(ROWS, "falcon_h1", other)
    assert finding_of(config, "bfloat16", deterministic=True).agreement == "differs"


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_deterministic_layers_with_states_have_the_bits_of_an_attached_model(name: str) -> None:
    assert finding_of(config_of(name), "bfloat16", deterministic=True).agreement == "bits"


@pytest.mark.parametrize(
    ("max_model_len", "agreement", "agrees_up_to"), [(4096, "differs", 2048), (2048, "rounding", 0)]
)
def test_shorter_texts_with_which_both_agree_are_found(
    max_model_len: int, agreement: str, agrees_up_to: int
) -> None:
    """Transformers computes ropes of dynamic NTK anew for each length, vLLM for the longest one."""
    config = LlamaConfig(rope_parameters=DYNAMIC, max_position_embeddings=2048)
    finding = finding_of(config, max_model_len=max_model_len)
    assert finding.agreement == agreement
    assert finding.agrees_up_to == agrees_up_to


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (PreTrainedConfig(), "Transformers makes no model of it"),
        (LlamaConfig(hidden_act="no such function"), "Transformers makes no model of it"),
    ],
)
def test_what_cannot_be_compared_says_why(config: Any, reason: str) -> None:
    finding = finding_of(config)
    assert finding.agreement == "unknown"
    assert reason in finding.reason
