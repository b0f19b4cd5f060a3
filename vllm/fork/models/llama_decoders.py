"""Which of vLLM's models compute as ``LlamaModel`` does, and what their layers consist of."""

from __future__ import annotations

from typing import Any

from torch import nn

from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)

_PACKAGE = "vllm.model_executor.models."
_PARTS = {
    "llama.LlamaModel": ("llama.LlamaDecoderLayer", "llama.LlamaAttention", "llama.LlamaMLP"),
    "mistral.MistralModel": (
        "mistral.MistralDecoderLayer",
        "mistral.MistralAttention",
        "llama.LlamaMLP",
    ),
    "qwen2.Qwen2Model": ("qwen2.Qwen2DecoderLayer", "qwen2.Qwen2Attention", "qwen2.Qwen2MLP"),
    "qwen3.Qwen3Model": ("qwen3.Qwen3DecoderLayer", "qwen3.Qwen3Attention", "qwen2.Qwen2MLP"),
}
"""Models without their heads, in Qwen3's with norms of heads of queries and keys; and their layers,
with what attends and multiplies in them."""

_OTHERS_OF_ATTENTION = ("qk_norm", "do_llama_4_scaling")
"""What an attention may have that Llama's has not."""

PRODUCTS = (QKVParallelLinear, RowParallelLinear, MergedColumnParallelLinear, RowParallelLinear)
"""The classes of `products_of`."""


def is_decoder(module: nn.Module) -> bool:
    """Whether a module is one of these models, which need not be loaded."""
    return _name_of(module) in _PARTS


def has_stock_layers(decoder: Any) -> bool:
    """Whether each layer of one of these models is what the model's class makes, and computes as
    Llama's does.
    """
    expected = _PARTS[_name_of(decoder)]
    return all(
        tuple(_name_of(part) for part in _parts_of(one)) == expected
        and not any(getattr(one.self_attn, name, False) for name in _OTHERS_OF_ATTENTION)
        and getattr(one, "ada_rms_norm_t_cond", None) is None
        for one in decoder.layers
    )


def _parts_of(layer: Any) -> list[Any]:
    """Return a layer, its attention and its MLP; None for what a layer of another kind lacks."""
    return [layer, *(getattr(layer, name, None) for name in ("self_attn", "mlp"))]


def products_of(layer: Any) -> tuple[Any, Any, Any, Any]:
    """Return the linear layers of a decoder layer: qkv, output, gate and up, down."""
    attention, mlp = layer.self_attn, layer.mlp
    return attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj


def head_norms(layer: Any) -> list[Any]:
    """Return the norms of queries and keys, if there are any."""
    norms = (getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm"))
    return [norm for norm in norms if norm is not None]


def norms_of(layer: Any) -> list[Any]:
    """Return the norms of a decoder layer: the first, the second, and `head_norms`."""
    return [layer.input_layernorm, layer.post_attention_layernorm, *head_norms(layer)]


def _name_of(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}".removeprefix(_PACKAGE)
