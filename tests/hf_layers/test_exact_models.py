"""No refusal advises a mode that refuses the model, or the engine's settings, as well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import (
    DeepseekV4Config,
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
from vllm.hf_layers.engine.exact_models import (
    check_exact,
    could_be_exact,
    exact_remedy,
    is_forgotten_by_guidance,
    num_state_blocks,
    why_not_exact,
)
from vllm.twin.check import _refuse


def ranks(tensor: int = 1, pipeline: int = 1, context: int = 1) -> Any:
    return SimpleNamespace(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        prefill_context_parallel_size=context,
    )


_SETTINGS: dict[str, Any] = {
    "additional_config": {},
    "parallel_config": ranks(),
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
        (Mamba2Config(), None),
        (FalconMambaConfig(), None),
        (Qwen3NextConfig(), None),
        (JambaConfig(), None),
        (DeepseekV4Config(), "has a DeepseekV4HCACache in its cache"),
        (PreTrainedConfig(), None),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_exact_mode_has_no_blocks_for(config: PreTrainedConfig, reason: str | None) -> None:
    assert why_not_exact(config) == reason


def test_exact_mode_is_refused_before_a_model_is_loaded() -> None:
    check_exact(LlamaConfig())
    with pytest.raises(
        ValueError, match=r"does not support Ours, which has a .* in its cache: use"
    ):
        check_exact(DeepseekV4Config(architectures=["Ours"]))
    with pytest.raises(ValueError, match=r'does not support deepsee.* or hf_compat="rules", which'):
        check_exact(DeepseekV4Config())


@pytest.mark.parametrize(
    ("config", "num_blocks"),
    [
        (LlamaConfig(), 0),
        (Mamba2Config(), 1),
        (Qwen3NextConfig(num_hidden_layers=8), 3),
        (PreTrainedConfig(), 0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_blocks_of_states(config: PreTrainedConfig, num_blocks: int) -> None:
    """Qwen3-Next has three layers with states for each that attends."""
    assert num_state_blocks(config) == num_blocks


@pytest.mark.parametrize(
    ("config", "is_forgotten"),
    [
        (LlamaConfig(), False),
        (Qwen3NextConfig(), False),
        (Mamba2Config(), True),
        (FalconMambaConfig(), True),
        (PreTrainedConfig(), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_models_that_guidance_forgets(config: PreTrainedConfig, is_forgotten: bool) -> None:
    assert is_forgotten_by_guidance(config) is is_forgotten


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (engine(LlamaConfig()), 'hf_compat="exact"'),
        (engine(Qwen3NextConfig()), 'hf_compat="exact"'),
        (engine(DeepseekV4Config()), None),
        (
            engine(LlamaConfig(), ForkFlags(hf_compat=True, deterministic=True)),
            'hf_compat="exact" without deterministic=True',
        ),
        (
            engine(LlamaConfig(), parallel_config=ranks(tensor=2, pipeline=4)),
            'hf_compat="exact" without tensor_parallel_size=2 and pipeline_parallel_size=4',
        ),
        (
            engine(LlamaConfig(), parallel_config=ranks(context=2)),
            'hf_compat="exact" without prefill_context_parallel_size',
        ),
        (
            engine(LlamaConfig(), speculative_config=object()),
            'hf_compat="exact" without speculative_config',
        ),
        (
            engine(LlamaConfig(), cache_config=SimpleNamespace(cache_dtype="fp8")),
            'hf_compat="exact" without kv_cache_dtype',
        ),
    ],
)
def test_exact_mode_is_advised_with_what_is_in_its_way(given: Any, remedy: str | None) -> None:
    assert exact_remedy(given) == remedy
    assert could_be_exact(given) is (remedy == 'hf_compat="exact"')
    with pytest.raises(ValueError, match="use hf_compat=") as refusal:
        _refuse(Finding("differs"), given)
    assert ('"exact"' in str(refusal.value)) is (remedy is not None)
    assert (remedy or "") in str(refusal.value)
    assert 'hf_compat="rules", which keeps' in str(refusal.value)
