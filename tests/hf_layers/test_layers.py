"""Norms, activations and rotary embeddings have the bits of Hugging Face's own modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.models.bloom.modeling_bloom import BloomGelu
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm as HFGemmaRMSNorm
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from tests.loaded_models import LoadModel
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.hf_layers.attention.attention import HFAttentionImpl
from vllm.hf_layers.definition.bloom import BloomGELU
from vllm.hf_layers.layers.norms import Scaling, scaling_of
from vllm.hf_layers.replacement import _follow_hf
from vllm.model_executor.layers.activation import (
    GELU,
    FastGELU,
    GeluAndMul,
    NewGELU,
    QuickGELU,
    SiluAndMul,
)
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.rotary_embedding import get_rope

Adversarial = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZE = 344  # not a multiple of a vector register's lanes times its unrolling


@pytest.fixture(autouse=True)
def _configured(one_rank: None) -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield


def configuration(model_type: str) -> PreTrainedConfig:
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type)


def prepared(layer: nn.Module, model_type: str = "llama") -> Any:
    parent = nn.Sequential(layer)
    _follow_hf(parent, configuration(model_type))
    return parent[0]


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal bits, where a NaN is one whatever its payload."""
    both_nan = ours.isnan() & theirs.isnan()
    zeros = (ours == 0) & (torch.signbit(ours) != torch.signbit(theirs))
    return ours.dtype == theirs.dtype and bool((((ours == theirs) & ~zeros) | both_nan).all())


# --- norms ----------------------------------------------------------------------------------------
NORMS = {
    "llama": (RMSNorm, LlamaRMSNorm),
    "olmo2": (RMSNorm, Olmo2RMSNorm),
    "gemma4_text": (RMSNorm, Gemma4RMSNorm),
    "gemma": (GemmaRMSNorm, HFGemmaRMSNorm),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model_type", NORMS)
def test_norms(adversarial: Adversarial, model_type: str, dtype: torch.dtype) -> None:
    ours_class, theirs_class = NORMS[model_type]
    theirs = theirs_class(SIZE, eps=1e-6).to(dtype)
    theirs.weight.data = adversarial((3, SIZE), dtype)[0]
    ours = ours_class(SIZE, eps=1e-6).to(dtype)
    ours.weight.data = theirs.weight.data.clone()
    ours = prepared(ours, model_type)
    x, residual = adversarial((33, SIZE), dtype), adversarial((34, SIZE), dtype)[:33]
    with torch.inference_mode():
        assert same(ours(x), theirs(x))
        total = residual + x
        normed, new_residual = ours(x.clone(), residual.clone())
        assert same(new_residual, total)
        assert same(normed, theirs(total))


def test_families_of_norms_differ(adversarial: Adversarial) -> None:
    """The test above would pass one formula for all if these inputs did not tell them apart."""
    x = adversarial((33, SIZE), torch.bfloat16)
    outputs = []
    for theirs_class in (LlamaRMSNorm, Olmo2RMSNorm, HFGemmaRMSNorm):
        norm = theirs_class(SIZE).to(torch.bfloat16)
        norm.weight.data = adversarial((3, SIZE), torch.bfloat16)[0]
        outputs.append(norm(x))
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])


@pytest.mark.parametrize(
    ("model_type", "scaling"),
    [
        ("llama", Scaling.ROUNDED),
        ("qwen3", Scaling.ROUNDED),
        ("llama4", Scaling.ROUNDED),
        ("olmo2", Scaling.FLOAT32),
        ("gpt_oss", Scaling.FLOAT32),
        ("gemma4", Scaling.FLOAT32),
        ("no_such_model", Scaling.ROUNDED),
    ],
)
def test_scaling_is_found_from_the_model_type(model_type: str, scaling: Scaling) -> None:
    module = f"transformers.models.{model_type}.configuration_{model_type}"
    assert scaling_of(module) is scaling


def test_upstreams_norm_differs(adversarial: Adversarial) -> None:
    """What there is to repair: upstream normalises the sum before it is rounded."""
    norm = RMSNorm(SIZE).to(torch.bfloat16)
    x, residual = (adversarial((n, SIZE), torch.bfloat16)[:33] for n in (33, 34))
    upstream = norm(x.clone(), residual.clone())[0]
    assert not torch.equal(upstream, prepared(norm)(x, residual)[0])


# --- activations ----------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (SiluAndMul, "silu"),
        (GeluAndMul, "gelu"),
        (lambda: GeluAndMul(approximate="tanh"), "gelu_pytorch_tanh"),
    ],
    ids=["silu", "gelu", "gelu_tanh"],
)
def test_gated_activations(
    adversarial: Adversarial, make: Callable[[], nn.Module], name: str, dtype: torch.dtype
) -> None:
    gate, up = adversarial((17, SIZE + 3), dtype), adversarial((18, SIZE + 3), dtype)[:17]
    ours = prepared(make())(torch.cat((gate, up), dim=-1))
    assert same(ours, ACT2FN[name](gate) * up)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("make", "name"), [(NewGELU, "gelu_new"), (FastGELU, "gelu_fast"), (QuickGELU, "quick_gelu")]
)
def test_plain_activations(
    adversarial: Adversarial, make: Callable[[], nn.Module], name: str, dtype: torch.dtype
) -> None:
    x = adversarial((17, SIZE + 3), dtype)
    assert same(prepared(make())(x), ACT2FN[name](x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gelu_of_bloom(adversarial: Adversarial, dtype: torch.dtype) -> None:
    x = adversarial((17, SIZE + 3), dtype)
    assert same(BloomGELU()(x), BloomGelu()(x))
    assert not same(BloomGelu()(x), GELU()(x))  # what vLLM has there


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bloom_has_its_gelu_in_every_dtype(load_model: LoadModel, dtype: str) -> None:
    def activations(**flags: bool) -> list[type]:
        model, _ = load_model("bloom-560m", dtype=dtype, **flags)
        layers = [m for name, m in model.named_modules() if name.endswith(".gelu_impl")]
        return [type(layer) for layer in layers]

    assert activations() == [GELU]
    assert activations(hf_compat=True) == [BloomGELU]


# --- rotary embeddings ----------------------------------------------------------------------------
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ROPES)
def test_rotary_embeddings(adversarial: Adversarial, kind: str, dtype: torch.dtype) -> None:
    num_tokens, heads, kv_heads, head_size = 96, 4, 2, 64
    config = LlamaConfig(
        hidden_size=heads * head_size,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        rope_parameters=deepcopy(ROPES[kind]),
    )
    positions = torch.randperm(2048, generator=torch.Generator().manual_seed(3))[:num_tokens]
    query = adversarial((num_tokens, heads * head_size), dtype)
    key = adversarial((num_tokens, kv_heads * head_size), dtype)

    def by_head(x: torch.Tensor) -> torch.Tensor:
        return x.view(1, num_tokens, -1, head_size).transpose(1, 2)

    cos, sin = LlamaRotaryEmbedding(config)(query[None], positions[None])
    expected = apply_rotary_pos_emb(by_head(query), by_head(key), cos, sin)
    rope = get_rope(head_size, 2048, rope_parameters=deepcopy(ROPES[kind]), dtype=dtype)
    ours = prepared(rope)(positions, query.clone(), key.clone())
    for rotated, reference in zip(ours, expected, strict=True):
        assert same(by_head(rotated).contiguous(), reference.contiguous())


# --- what is left alone ---------------------------------------------------------------------------
def test_cached_layers_of_other_engines_are_left_alone() -> None:
    """vLLM gives models of one process the same rotary embedding and activation objects."""
    rope = get_rope(64, 512, rope_parameters=deepcopy(ROPES["default"]))
    before = rope._forward_method
    first = prepared(rope)
    assert first is not rope
    assert rope._forward_method == before
    assert get_rope(64, 512, rope_parameters=deepcopy(ROPES["default"])) is rope


def test_without_flags_no_layer_is_touched(load_model: LoadModel) -> None:
    plain, _ = load_model("tinyllama-1.1b")
    with_flag, _ = load_model("tinyllama-1.1b", hf_compat=True)

    def touched(model: nn.Module) -> int:
        modules = list(model.modules())
        return sum(
            "vllm.hf_layers" in repr([type(value) for value in vars(module).values()])
            or getattr(vars(module).get("_forward_method"), "func", None) is not None
            for module in modules
        )

    assert touched(plain) == 0
    assert touched(with_flag) > 8
    assert any(isinstance(getattr(m, "impl", None), HFAttentionImpl) for m in with_flag.modules())


def soft_caps(model: nn.Module) -> set[float]:
    found = (getattr(layer, "impl", None) for layer in model.modules())
    return {one.logits_soft_cap for one in found if one is not None}


@pytest.mark.some(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_are_capped_where_transformers_caps_them(load_model: LoadModel, dtype: str) -> None:
    """Its sdpa attention, which it chooses for Gemma 2, does not."""
    upstream, folder = load_model("gemma2-2b", dtype=dtype)
    assert AutoModelForCausalLM.from_pretrained(folder).config._attn_implementation == "sdpa"
    assert soft_caps(upstream) == {50.0}
    assert soft_caps(load_model("gemma2-2b", dtype=dtype, hf_compat=True)[0]) == {0}
    eager = {"attn_implementation": "eager"}
    asked = load_model("gemma2-2b", dtype=dtype, hf_compat=True, hf_overrides=eager)[0]
    assert soft_caps(asked) == {50.0}
