"""No refusal advises a mode that refuses the model, or the engine's settings, as well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import (
    FalconMambaConfig,
    Gemma2Config,
    JambaConfig,
    LlamaConfig,
    Mamba2Config,
    PreTrainedConfig,
    Qwen3NextConfig,
)

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.finding import Finding
from vllm.hf_layers.engine.exact_models import check_exact, could_be_exact, why_not_exact
from vllm.twin.check import _refuse

_SETTINGS: dict[str, Any] = {
    "additional_config": {},
    "parallel_config": SimpleNamespace(world_size=1),
    "speculative_config": None,
    "kv_transfer_config": None,
    "cache_config": SimpleNamespace(cache_dtype="auto"),
}


def engine(config: PreTrainedConfig, flags: ForkFlags | None = None, **settings: Any) -> Any:
    model = SimpleNamespace(hf_config=config, architecture="AModel", enable_prompt_embeds=False)
    carried = (flags or ForkFlags(hf_compat=True)).carry({})
    return SimpleNamespace(
        **{**_SETTINGS, "additional_config": carried, "model_config": model, **settings}
    )


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LlamaConfig(), None),
        (Gemma2Config(), None),
        (Mamba2Config(), "keeps no keys and values"),
        (FalconMambaConfig(), "keeps no keys and values"),
        (Qwen3NextConfig(), "has a LinearAttentionLayer in its cache"),
        (JambaConfig(), "has a LinearAttentionLayer in its cache"),
        (PreTrainedConfig(), None),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_exact_mode_has_no_pages_for(config: PreTrainedConfig, reason: str | None) -> None:
    assert why_not_exact(config) == reason


def test_exact_mode_is_refused_before_a_model_is_loaded() -> None:
    check_exact(LlamaConfig())
    with pytest.raises(
        ValueError, match=r"does not support Ours, which has a .* in its cache: use"
    ):
        check_exact(Qwen3NextConfig(architectures=["Ours"]))
    with pytest.raises(ValueError, match=r'does not support mamba2.* or hf_compat="rules", which'):
        check_exact(Mamba2Config())


@pytest.mark.parametrize(
    ("given", "is_advised"),
    [
        (engine(LlamaConfig()), True),
        (engine(Qwen3NextConfig()), False),
        (engine(LlamaConfig(), ForkFlags(hf_compat=True, deterministic=True)), False),
        (engine(LlamaConfig(), parallel_config=SimpleNamespace(world_size=2)), False),
        (engine(LlamaConfig(), speculative_config=object()), False),
        (engine(LlamaConfig(), cache_config=SimpleNamespace(cache_dtype="fp8")), False),
    ],
)
def test_exact_mode_is_advised_where_it_goes(given: Any, is_advised: bool) -> None:
    assert could_be_exact(given) is is_advised
    with pytest.raises(ValueError, match="use hf_compat=") as refusal:
        _refuse(Finding("differs"), given)
    assert ('"exact"' in str(refusal.value)) is is_advised
    assert 'hf_compat="rules", which keeps' in str(refusal.value)
