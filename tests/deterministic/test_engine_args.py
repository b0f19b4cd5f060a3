"""What goes with the flag, and what is refused with one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engines import MODEL
from vllm.config import VllmConfig
from vllm.deterministic.engine_args import prepare_engine_args
from vllm.engine.arg_utils import EngineArgs
from vllm.fork.flags.fork_flags import ForkFlags


def engine_config(**arguments: Any) -> VllmConfig:
    settings = {"deterministic": True, "dtype": "bfloat16", "max_model_len": 64}
    return EngineArgs(str(MODEL), **(settings | arguments)).create_engine_config()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("hf_compat", [False, True])
def test_what_it_runs_with(dtype: str, hf_compat: bool) -> None:
    config = engine_config(dtype=dtype, hf_compat=hf_compat, split_qkv=True)
    assert ForkFlags.of(config).is_portable
    assert config.model_config.enforce_eager
    assert not config.use_v2_model_runner
    assert config.model_config.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("drafts", [None, {"method": "ngram_gpu", "num_speculative_tokens": 2}])
def test_drafts_are_checked_synchronously(drafts: dict[str, Any] | None) -> None:
    """Else tokens that are not known yet would be among those that a draft comes after."""
    args = EngineArgs(str(MODEL), dtype="bfloat16", deterministic=True, speculative_config=drafts)
    prepare_engine_args(args, ForkFlags(deterministic=True))
    assert args.async_scheduling is (None if drafts is None else False)


def test_auto_is_the_models_own_dtype() -> None:
    assert engine_config(dtype="auto").model_config.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dtype": "float32"}, 'fewer than float32 has: use dtype="bfloat16" or dtype="float16"'),
        ({"hf_compat": "exact"}, r"does not go with hf_compat=\"exact\".*hf_compat=True goes"),
        ({"quantization": "fp8"}, "does not go with quantization='fp8', since quantised weights"),
        ({"kv_cache_dtype": "fp8"}, "does not go with kv_cache_dtype='fp8'"),
        (
            {"mamba_cache_dtype": "float32"},
            "with mamba_cache_dtype='float32', since the last inputs",
        ),
        ({"mamba_ssm_cache_dtype": "bfloat16"}, "since states of recurrences are kept in float32"),
        ({"use_replayssm": True}, "with use_replayssm=True, since states are kept"),
        ({"pipeline_parallel_size": 2}, "does not go with pipeline_parallel_size=2"),
        ({"enable_expert_parallel": True}, "does not go with enable_expert_parallel=True"),
        ({"fully_sharded_loras": True}, "with fully_sharded_loras=True, since it splits"),
        ({"deterministic": "batch"}, "needs an NVIDIA GPU: use deterministic=True here"),
        ({"deterministic": "always"}, "deterministic='always' is not a value of this flag"),
    ],
)
def test_refusals(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        engine_config(**arguments)
