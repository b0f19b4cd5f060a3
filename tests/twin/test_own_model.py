"""Transformers' own model in place of vLLM's, where vLLM's has other bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    FalconConfig,
    GraniteMoeConfig,
    Lfm2Config,
    LlamaConfig,
    OlmoeConfig,
    PreTrainedConfig,
)

from tests.twin.cases import SIZES, start
from vllm.config import VllmConfig
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.finding import Finding, noted_definition
from vllm.twin import own_model
from vllm.twin.definition import definition_of

pytestmark = pytest.mark.usefixtures("empty_cache")

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def mode_of(config: VllmConfig) -> Any:
    return ForkFlags.of(config).hf_compat


def other_bits() -> PreTrainedConfig:
    return GraniteMoeConfig(**SIZES, **EXPERTS)


def another_function() -> PreTrainedConfig:
    return OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, clip_qkv=0.3)


@pytest.mark.parametrize("hf_compat", [True, "strict"])
@pytest.mark.parametrize("make", [other_bits, another_function])
@pytest.mark.some(2)
def test_it_runs_where_vllms_has_other_bits(make: Any, hf_compat: Any, tmp_path: Path) -> None:
    config = start(make(), tmp_path, hf_compat=hf_compat)
    assert mode_of(config) == "exact"
    assert noted_definition(config) is None


def test_it_runs_what_no_twin_of_vllms_can_show(tmp_path: Path) -> None:
    config = FalconConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=2, alibi=True)
    assert mode_of(start(config, tmp_path, hf_compat=True)) == "exact"


def test_it_runs_where_layers_keep_states(tmp_path: Path) -> None:
    """LFM2's have the bits, but vLLM's have no beams, and are not promised."""
    layers = ["conv", "full_attention"]
    config = Lfm2Config(**SIZES, layer_types=layers)
    assert mode_of(start(config, tmp_path, hf_compat=True)) == "exact"


def test_vllms_stays_where_it_has_the_bits(tmp_path: Path) -> None:
    assert mode_of(start(LlamaConfig(**SIZES), tmp_path, hf_compat=True)) is True


@pytest.mark.parametrize(
    "arguments",
    [
        {"model_impl": "vllm"},
        {"split_qkv": False},
        {"enable_prefix_caching": True},
        {"enable_chunked_prefill": True, "max_num_batched_tokens": 64},
        {"tensor_parallel_size": 2},
        {"dtype": "float32"},
    ],
    ids=str,
)
@pytest.mark.some(3)
def test_vllms_stays_where_that_is_asked_for(arguments: dict[str, Any], tmp_path: Path) -> None:
    config = start(other_bits(), tmp_path, hf_compat=True, **arguments)
    assert mode_of(config) is True
    finding = noted_definition(config)
    assert finding is not None
    assert finding.agreement == "rounding"


def test_it_is_tried_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin that exact mode does not run, or runs with other bits, leaves vLLM's model."""
    known = definition_of

    def without_bits(model: Any, flags: ForkFlags, *args: Any, **kwargs: Any) -> Finding:
        is_own = flags.hf_compat == "exact"
        return Finding("unknown", "tried") if is_own else known(model, flags, *args, **kwargs)

    monkeypatch.setattr(own_model, "definition_of", without_bits)
    assert mode_of(start(other_bits(), tmp_path, hf_compat=True)) is True
