"""Attention of the models that compute it themselves has the bits of their own modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, BloomConfig, DynamicCache, FalconConfig
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.falcon.modeling_falcon import FalconAttention

from vllm.hf_layers.attention.attention import HFAttentionImpl
from vllm.hf_layers.attention.model_attention import (
    BloomAttentionImpl,
    MultiQueryAttentionImpl,
    attention_of,
)
from vllm.model_executor.models.bloom import _get_alibi_slopes

pytestmark = pytest.mark.fast

PROMPTS = (1, 7, 33, 100, 257)
NUM_DECODED = 4
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def make_impl(
    kind: type[HFAttentionImpl], heads: int, kv_heads: int, size: int, slopes: Any = None
) -> HFAttentionImpl:
    upstream: Any = SimpleNamespace(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        scale=size**-0.5,
        sliding_window=-1,
        alibi_slopes=slopes,
    )
    return kind(upstream, scales_query=False)


def attention_alone(module: nn.Module) -> Any:
    """Leave of an attention module what is between its projections."""
    module.query_key_value = module.dense = nn.Identity()
    return module.eval()


def steps(length: int) -> list[tuple[int, int]]:
    """Return (first position, position after the last) of a prompt and of tokens that follow."""
    return [(0, length), *((i, i + 1) for i in range(length, length + NUM_DECODED))]


@torch.inference_mode()
@pytest.mark.parametrize(("heads", "size"), [(16, 64), (5, 80)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bloom(dtype: torch.dtype, heads: int, size: int) -> None:
    theirs = attention_alone(BloomAttention(BloomConfig(hidden_size=heads * size, n_head=heads), 0))
    slopes = torch.tensor(_get_alibi_slopes(heads).tolist())
    ours = make_impl(BloomAttentionImpl, heads, heads, size, slopes)
    for length in PROMPTS:
        x = torch.randn(length + NUM_DECODED, heads, 3, size).to(dtype)
        query, key, value = x.unbind(2)
        cache = DynamicCache()
        for begin, end in steps(length):
            positions = torch.arange(end)
            future = positions > positions[begin:, None]
            expected, _ = theirs(
                x[begin:end].reshape(1, end - begin, -1),
                torch.zeros(1, end - begin, heads * size, dtype=dtype),
                build_alibi_tensor(torch.ones(1, end), heads, dtype),
                torch.zeros_like(future, dtype=dtype).masked_fill(future, torch.finfo(dtype).min),
                layer_past=cache,
            )
            keys_values = torch.cat((key, value), dim=-1)[:end].transpose(0, 1)
            attended = ours._attend(query[begin:end].contiguous(), keys_values, size**-0.5)
            assert torch.equal(attended.flatten(1), expected[0]), (begin, end)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "is_new"),
    [(71, 1, 64, False), (5, 1, 32, False), (16, 4, 64, True), (8, 1, 64, True)],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_falcon(dtype: torch.dtype, heads: int, kv_heads: int, size: int, is_new: bool) -> None:
    """One head of keys and values, or in the new models groups of heads that share one."""
    config = FalconConfig(
        hidden_size=heads * size,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        new_decoder_architecture=is_new,
    )
    config._attn_implementation = "sdpa"
    theirs = attention_alone(FalconAttention(config, 0))
    ours = make_impl(attention_of(config), heads, kv_heads, size)
    for length in PROMPTS:
        x = torch.randn(length + NUM_DECODED, kv_heads, heads // kv_heads + 2, size).to(dtype)
        query, keys_values = x[:, :, :-2].flatten(1, 2), x[:, :, -2:].flatten(2).transpose(0, 1)
        cache = DynamicCache()
        for begin, end in steps(length):
            still = torch.zeros(1, end - begin, size, dtype=dtype)
            expected, _ = theirs(
                x[begin:end].reshape(1, end - begin, -1),
                alibi=None,
                attention_mask=None,
                layer_past=cache,
                position_embeddings=(still + 1, still),  # cosine and sine of no rotation
            )
            attended = ours._attend(query[begin:end].contiguous(), keys_values[:, :end], size**-0.5)
            assert torch.equal(attended.flatten(1), expected[0]), (begin, end)


@pytest.mark.parametrize(
    ("model_type", "fields", "kind"),
    [
        ("bloom", {}, BloomAttentionImpl),
        ("falcon", {}, MultiQueryAttentionImpl),
        ("falcon", {"new_decoder_architecture": True}, HFAttentionImpl),
        ("falcon", {"multi_query": False}, HFAttentionImpl),
        ("gpt_bigcode", {}, HFAttentionImpl),
    ],
)
def test_the_attention_of_a_configuration(
    model_type: str, fields: dict[str, bool], kind: type[HFAttentionImpl]
) -> None:
    assert attention_of(AutoConfig.for_model(model_type, **fields)) is kind
