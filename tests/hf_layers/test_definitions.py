"""Models whose class in vLLM is another function than Transformers': with hf_compat it is not.

Small random models of a configuration are computed on both sides (`vllm.twin`).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import (
    AfmoeConfig,
    ApertusConfig,
    BloomConfig,
    Cohere2Config,
    DeepseekV3Config,
    Ernie4_5_MoeConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Glm4MoeLiteConfig,
    GPT2Config,
    HYV3Config,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MiniMaxM2Config,
    Ministral3Config,
    OlmoeConfig,
    PhimoeConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    StableLmConfig,
)
from transformers.models.stablelm.modeling_stablelm import StableLmLayerNormPerHead

from tests.twin.cases import finding_of
from tools.definitions.bases import base_of
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.hf_layers.definition import stablelm
from vllm.hf_layers.definition.windows import _set_window
from vllm.hf_layers.engine.unlike_models import check_long_texts
from vllm.hf_layers.layers.rotary import check_positions
from vllm.model_executor.layers.rotary_embedding import get_rope

_WINDOWS = {"use_sliding_window": True, "num_hidden_layers": 4}
_TURNS = ["full_attention", "sliding_attention"] * 2
_STABLELM_2 = {"qk_layernorm": True, "use_parallel_residual": True}
_LFM2 = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "hidden_size": 2048,
    "conv_dim": 2048,
    "conv_dim_out": 2048,
    "block_dim": 2048,
}
_MINIMAX_M2 = {"rotary_dim": 64, "scoring_func": "sigmoid", "use_routing_bias": True}
_LESS_THAN_POSITIONS = {
    "max_position_embeddings": 1024,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}
_THREE_HEADS_A_GROUP = {
    "hidden_size": 384,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 32,
}
_SCALES_OF_LAYERS = {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}


@pytest.mark.some(8)
@pytest.mark.parametrize(
    ("config", "dtype", "agreement"),
    [
        pytest.param(ApertusConfig(), "float32", "rounding", marks=pytest.mark.long),
        (Cohere2Config(num_hidden_layers=4), "float32", "rounding"),
        (Ernie4_5_MoeConfig(num_hidden_layers=4), "float32", "rounding"),
        pytest.param(
            *(MiniMaxM2Config(**_MINIMAX_M2), "float32", "rounding"), marks=pytest.mark.long
        ),
        (MiniMaxM2Config(), "float32", "rounding"),
        pytest.param(Gemma3nTextConfig(), "float32", "rounding", marks=pytest.mark.long),
        (Lfm2Config(**_LFM2), "float32", "rounding"),
        (Llama4TextConfig(num_hidden_layers=4), "bfloat16", "rounding"),
        pytest.param(
            Llama4TextConfig(num_hidden_layers=4, attn_temperature_tuning=False),
            *("float32", "rounding"),
            marks=pytest.mark.long,
        ),
        (Ministral3Config(), "bfloat16", "bits"),
        (base_of("deepseek_v2").make({}), "float32", "rounding"),
        pytest.param(AfmoeConfig(), "float32", "rounding", marks=pytest.mark.long),
        (DeepseekV3Config(num_hidden_layers=4, moe_layer_freq=2), "float32", "rounding"),
        (FalconConfig(bias=True), "bfloat16", "bits"),
        (Glm4MoeLiteConfig(), "float32", "rounding"),
        pytest.param(HYV3Config(), "bfloat16", "rounding", marks=pytest.mark.long),
        pytest.param(Lfm2Config(), "bfloat16", "bits", marks=pytest.mark.long),
        (LlamaConfig(**_LESS_THAN_POSITIONS), "float32", "rounding"),
        (LlamaConfig(**_THREE_HEADS_A_GROUP), "bfloat16", "bits"),
        (base_of("glm4_moe_lite").make({}), "float32", "rounding"),  # norms with two epsilons
        (base_of("gpt_oss").make({"rms_norm_eps": 1e-3}), "float32", "rounding"),
        pytest.param(OlmoeConfig(rms_norm_eps=1e-3), "float32", "rounding", marks=pytest.mark.long),
        pytest.param(
            *(GPT2Config(**_SCALES_OF_LAYERS), "float32", "rounding"), marks=pytest.mark.long
        ),
        (GPT2Config(**_SCALES_OF_LAYERS), "bfloat16", "bits"),
        (GPT2Config(scale_attn_weights=False), "bfloat16", "bits"),
        pytest.param(
            *(StableLmConfig(**_STABLELM_2), "float32", "rounding"), marks=pytest.mark.long
        ),
        (StableLmConfig(**_STABLELM_2), "bfloat16", "bits"),
        pytest.param(
            *(StableLmConfig(qk_layernorm=True), "bfloat16", "bits"), marks=pytest.mark.long
        ),
        (PhimoeConfig(attention_bias=True, lm_head_bias=True), "float32", "rounding"),
        pytest.param(
            PhimoeConfig(attention_bias=False), "float32", "rounding", marks=pytest.mark.long
        ),
        (Qwen2Config(**_WINDOWS, max_window_layers=2), "bfloat16", "bits"),
        (Qwen2MoeConfig(**_WINDOWS, max_window_layers=4), "bfloat16", "bits"),
        (Qwen3Config(**_WINDOWS, max_window_layers=4, layer_types=_TURNS), "bfloat16", "bits"),
    ],
    ids=lambda one: one.model_type if isinstance(one, PreTrainedConfig) else None,
)
def test_both_sides_agree(config: PreTrainedConfig, dtype: str, agreement: str) -> None:
    assert finding_of(config, dtype).agreement == agreement


@pytest.mark.some(2)
@pytest.mark.parametrize("flags", [{}, {"hf_compat": True}], ids=["alone", "hf_compat"])
@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**_WINDOWS, max_window_layers=2),
        GPT2Config(**_SCALES_OF_LAYERS),
        StableLmConfig(**_STABLELM_2),
    ],
    ids=lambda one: one.model_type,
)
def test_deterministic_mode_has_the_bits_of_an_attached_model(
    config: PreTrainedConfig, flags: dict[str, bool]
) -> None:
    assert finding_of(config, "bfloat16", deterministic=True, **flags).agreement == "bits"


@pytest.mark.parametrize(
    ("config", "agreement"),
    [
        (Gemma2Config(num_hidden_layers=4), "bits"),  # whose scores attach() caps
        (BloomConfig(hidden_size=1024, n_head=16), "rounding"),  # which attach() does not take
    ],
    ids=lambda one: one.model_type if isinstance(one, PreTrainedConfig) else None,
)
def test_deterministic_mode_alone(config: PreTrainedConfig, agreement: str) -> None:
    assert finding_of(config, "bfloat16", deterministic=True).agreement == agreement


@pytest.mark.parametrize(("window", "expected"), [(7, (6, 0)), (None, (-1, -1))])
def test_window_of_a_backend_that_has_two_sides(
    window: int | None, expected: tuple[int, int]
) -> None:
    layer = SimpleNamespace(sliding_window=8, impl=SimpleNamespace(sliding_window=(7, 0)))
    _set_window(layer, window)
    assert (layer.sliding_window, layer.impl.sliding_window) == (window, expected)


@pytest.mark.parametrize("num_heads", [4, 2, 1])
def test_norms_of_heads_on_several_ranks(num_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two or more ranks have one head where there are fewer heads than ranks."""
    torch.manual_seed(0)
    hf = StableLmLayerNormPerHead(8, num_heads)
    for one in hf.parameters():
        torch.nn.init.normal_(one)
    x = torch.randn(5, num_heads, 8)
    expected = hf(x.transpose(0, 1)[None])[0].transpose(0, 1)
    monkeypatch.setattr(stablelm, "get_tensor_model_parallel_world_size", lambda: 4)
    for rank in range(4):
        monkeypatch.setattr(stablelm, "get_tensor_model_parallel_rank", lambda rank=rank: rank)
        norm = stablelm.NormPerHead(num_heads, 8, 1e-5, x)
        norm.load_state_dict(hf.state_dict())
        own = rank * num_heads // 4
        assert torch.equal(norm(x[:, own]), expected[:, own])


@pytest.mark.parametrize(
    ("config", "max_model_len", "sentence"),
    [
        (LlamaConfig(max_position_embeddings=512), 1500, "use max_model_len=512, or hf_compat"),
        (Gemma3TextConfig(max_position_embeddings=512), 1500, "use max_model_len=512, or hf_com"),
        (FalconConfig(alibi=True), 16, "alibi=True of falcon"),
    ],
)
def test_what_only_long_texts_show(
    config: PreTrainedConfig, max_model_len: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_long_texts(config, max_model_len, "hf_compat=True")


@pytest.mark.parametrize(
    ("config", "max_model_len"),
    [
        (LlamaConfig(max_position_embeddings=512), 512),
        (Llama4TextConfig(), 40000),
        (GPT2Config(), 2048),
    ],
)
def test_long_texts_that_are_computed_alike(config: PreTrainedConfig, max_model_len: int) -> None:
    check_long_texts(config, max_model_len, "hf_compat=True")


def test_positions_without_angles() -> None:
    """Of any rope: a factor stretches what vLLM has angles for."""
    stretched = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    with set_current_vllm_config(VllmConfig()):
        model = nn.ModuleList([get_rope(64, 200, rope_parameters=stretched, dtype=torch.float32)])
    check_positions(model, 400, "hf_compat=True")
    with pytest.raises(ValueError, match=r"max_model_len=401, since .* use max_model_len=400"):
        check_positions(model, 401, "hf_compat=True")


def test_a_field_that_stops_an_engine_is_named(tmp_path: Path) -> None:
    """Before it starts: vLLM's class ends in an AssertionError without a word."""
    GPT2Config(add_cross_attention=True, architectures=["GPT2LMHeadModel"]).save_pretrained(
        tmp_path
    )
    with pytest.raises(ValueError, match=r"add_cross_attention=True of GPT2LMHeadModel.*or try hf"):
        EngineArgs(
            str(tmp_path),
            dtype="float32",
            hf_compat=True,
            model_impl="vllm",
            skip_tokenizer_init=True,
        ).create_engine_config()
