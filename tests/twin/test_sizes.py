"""The configuration of a twin: what becomes small, what stays, and which layers there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    Cohere2Config,
    DeepseekV3Config,
    Ernie4_5_MoeConfig,
    FalconConfig,
    Gemma3Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GptOssConfig,
    HrmTextConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from tests.deterministic.states_models import CHANGES, config_of
from vllm.twin.sizes import (
    LONGEST_TEXT,
    ORIGINAL_LENGTH,
    WINDOW,
    has_experts,
    has_states,
    limits_of_texts,
    passed_lengths,
    with_small_sizes,
)
from vllm.twin.twin import NoTwin, Twin

ANY_LENGTH = 1 << 20
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def small(config: PreTrainedConfig, max_model_len: int = ANY_LENGTH) -> dict[str, Any]:
    return with_small_sizes(config.to_dict(), max_model_len)


def test_heads_keep_their_size_and_their_groups() -> None:
    fields = small(LlamaConfig(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8))
    assert fields["num_attention_heads"] / fields["num_key_value_heads"] == 4
    assert fields["head_dim"] == 128
    assert fields["hidden_size"] == fields["num_attention_heads"] * 128


def test_heads_of_linear_attention_keep_their_groups() -> None:
    fields = small(Qwen3NextConfig(linear_num_key_heads=16, linear_num_value_heads=32))
    assert (fields["linear_num_key_heads"], fields["linear_num_value_heads"]) == (2, 4)


def test_single_layers_keep_their_heads() -> None:
    config = Gemma4TextConfig(
        num_attention_heads=32,
        num_key_value_heads=16,
        num_global_key_value_heads=4,
        attention_k_eq_v=True,
        num_hidden_layers=18,
    )
    few = Twin.of(config, ANY_LENGTH).config
    assert few.num_attention_heads == 4
    expected = {"sliding_attention": (256, 2), "full_attention": (512, 1)}
    for kind, layer in zip(few.layer_types, few.per_layer_config, strict=True):
        assert (layer.head_dim, layer.num_key_value_heads) == expected[kind]


def test_layers_that_share_keys_come_last() -> None:
    config = Gemma3nTextConfig()
    few = Twin.of(config, ANY_LENGTH).config
    assert 0 < few.num_kv_shared_layers < few.num_hidden_layers - 1
    shared = few.layer_types[-few.num_kv_shared_layers :]
    assert set(shared) == set(few.layer_types[: -few.num_kv_shared_layers])


def test_layers_of_a_stack_are_counted_as_often_as_it_runs() -> None:
    config = HrmTextConfig()
    few = Twin.of(config, ANY_LENGTH).config
    runs = config.num_hidden_layers // config.num_layers_per_stack
    assert (few.num_layers_per_stack, few.num_hidden_layers) == (2, 2 * runs)


@pytest.mark.parametrize(
    "config", [LlamaConfig(), FalconConfig(), GptOssConfig(), DeepseekV3Config(), Qwen3MoeConfig()]
)
def test_what_is_no_size_stays(config: PreTrainedConfig) -> None:
    before, after = config.to_dict(), small(config)
    changed = {name for name, value in before.items() if after[name] != value}
    assert changed <= {
        *("hidden_size", "num_attention_heads", "num_key_value_heads", "num_kv_heads"),
        *("intermediate_size", "ffn_hidden_size", "moe_intermediate_size", "q_lora_rank"),
        *("shared_expert_intermediate_size", "max_position_embeddings", "vocab_size"),
        *("num_local_experts", "num_experts", "n_routed_experts", "sliding_window"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters", "rope_scaling"),
        *("rms_norm_eps", "layer_norm_epsilon"),
    }


@pytest.mark.parametrize(("epsilon", "expected"), [(1e-6, 0.01), (0.1, 0.1)])
def test_epsilons_are_not_lost_beside_activations(epsilon: float, expected: float) -> None:
    assert small(LlamaConfig(rms_norm_eps=epsilon))["rms_norm_eps"] == expected
    assert small(FalconConfig(layer_norm_epsilon=epsilon))["layer_norm_epsilon"] == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(), False),
        (GptOssConfig(), True),
        (DeepseekV3Config(), True),
        (Gemma4TextConfig(), False),  # enable_moe_block=False
        (Gemma3Config(), False),  # with parts
    ],
    ids=lambda one: one.model_type if isinstance(one, PreTrainedConfig) else None,
)
def test_experts(config: PreTrainedConfig, expected: bool) -> None:
    assert has_experts(config.to_dict()) == expected


@pytest.mark.parametrize("name", CHANGES)
def test_states(name: str) -> None:
    assert has_states(config_of(name).to_dict())
    assert has_states({"text_config": config_of(name).to_dict()})


@pytest.mark.parametrize("config", [LlamaConfig(), DeepseekV3Config(), Gemma3Config()])
def test_no_states(config: PreTrainedConfig) -> None:
    assert not has_states(config.to_dict())


def test_texts_pass_windows_and_trained_lengths_if_those_of_the_engine_do() -> None:
    config = LlamaConfig(rope_parameters=LLAMA3, max_position_embeddings=131072)
    beyond = small(config)
    assert beyond["rope_parameters"]["original_max_position_embeddings"] == ORIGINAL_LENGTH
    assert beyond["max_position_embeddings"] == 16 * ORIGINAL_LENGTH
    within = small(config, max_model_len=8192)
    assert within["rope_parameters"]["original_max_position_embeddings"] == LONGEST_TEXT
    assert small(Cohere2Config())["sliding_window"] == WINDOW
    assert small(Cohere2Config(), max_model_len=4096)["sliding_window"] == 4096


def test_lengths_that_a_twin_passes() -> None:
    """Findings are kept by them: engines whose texts pass the same limits have the same twin."""
    fields = Cohere2Config(max_position_embeddings=8192).to_dict()
    assert passed_lengths(fields, 8192) == passed_lengths(fields, 5000) == [LONGEST_TEXT, 4096]
    assert passed_lengths(fields, 4096) == [LONGEST_TEXT]
    assert passed_lengths(fields, 100) == [100]
    rope = LlamaConfig(rope_parameters=LLAMA3, max_position_embeddings=131072).to_dict()
    assert passed_lengths({"text_config": rope}, 131072) == [LONGEST_TEXT, 8192]
    assert passed_lengths({"sliding_window": [16, None, 64]}, 32) == [16, 32]


def test_limits_of_texts_have_the_names_of_their_fields() -> None:
    config = LlamaConfig(rope_parameters=LLAMA3, max_position_embeddings=131072)
    assert limits_of_texts(config.to_dict()) == {"original_max_position_embeddings": 8192}
    assert limits_of_texts(Cohere2Config().to_dict()) == {"sliding_window": 4096}


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (LlamaConfig(), 2),
        (LlamaConfig(num_hidden_layers=1), 1),
        (Gemma3TextConfig(), 6),  # five with a window before one without
        (Ernie4_5_MoeConfig(num_hidden_layers=16, moe_layer_interval=14), 14),  # a period
        (DeepseekV3Config(), 4),  # three dense ones before those of experts
        (
            Qwen2Config(
                num_hidden_layers=28,
                use_sliding_window=True,
                max_window_layers=28,
                layer_types=["full_attention"] * 27 + ["sliding_attention"],
            ),
            2,
        ),
    ],
)
def test_there_is_one_layer_of_each_kind(config: PreTrainedConfig, layers: int) -> None:
    twin = Twin.of(config, ANY_LENGTH)
    assert twin.config.num_hidden_layers == layers
    kinds = getattr(config, "layer_types", None) or []
    assert set(getattr(twin.config, "layer_types", None) or []) == set(kinds)


def test_special_tokens_stay_different_and_in_the_vocabulary() -> None:
    config = LlamaConfig(vocab_size=128256, bos_token_id=128000, eos_token_id=[128001, 128009])
    fields = small(config)
    ids = [fields["bos_token_id"], *fields["eos_token_id"]]
    assert len(set(ids)) == 3
    assert max(ids) < fields["vocab_size"]


def test_a_configuration_without_a_model_says_so() -> None:
    with pytest.raises(NoTwin, match="Transformers makes no model of it"):
        Twin.of(PreTrainedConfig(), ANY_LENGTH)


def test_a_seed_gives_the_same_weights() -> None:
    """Decays of delta nets are drawn when a model is made, and then changed a little."""
    twin = Twin.of(Qwen3NextConfig(), ANY_LENGTH)
    found = []
    for seed in (0, 0, 1):
        with twin.on_disk(seed) as folder:
            found.append(load_file(folder / "model.safetensors"))
    first, again, other = found
    assert all(torch.equal(first[name], again[name]) for name in first)
    decays = [name for name in first if name.endswith("A_log")]
    assert decays
    assert not any(torch.equal(first[name], other[name]) for name in decays)
