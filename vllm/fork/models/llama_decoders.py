"""Which models compute as ``LlamaModel`` does, and what their layers consist of.

They are vLLM's and Transformers'; one operator computes all layers of one of them in every mode.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import nn

from vllm.fork.models.modules import class_name
from vllm.fork.models.watched_modules import WatchedModules
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)

_PACKAGES = ("vllm.model_executor.models.", "transformers.models.")
_PARTS = {
    "llama.LlamaModel": ("llama.LlamaDecoderLayer", "llama.LlamaAttention", "llama.LlamaMLP"),
    "mistral.MistralModel": (
        "mistral.MistralDecoderLayer",
        "mistral.MistralAttention",
        "llama.LlamaMLP",
    ),
    "qwen2.Qwen2Model": ("qwen2.Qwen2DecoderLayer", "qwen2.Qwen2Attention", "qwen2.Qwen2MLP"),
    "qwen3.Qwen3Model": ("qwen3.Qwen3DecoderLayer", "qwen3.Qwen3Attention", "qwen2.Qwen2MLP"),
    **{
        f"{kind.lower()}.modeling_{kind.lower()}.{kind}Model": tuple(
            f"{kind.lower()}.modeling_{kind.lower()}.{kind}{part}"
            for part in ("DecoderLayer", "Attention", "MLP")
        )
        for kind in ("Llama", "Mistral", "Qwen2", "Qwen3")
    },
}
"""Models without their heads, vLLM's and then Transformers', in Qwen3's with norms of heads of
queries and keys; and their layers, with what attends and multiplies in them."""

_OTHERS_OF_ATTENTION = ("qk_norm", "do_llama_4_scaling")
"""What an attention may have that Llama's has not."""

PRODUCTS = (QKVParallelLinear, RowParallelLinear, MergedColumnParallelLinear, RowParallelLinear)
"""The classes of `products_of`."""


def is_decoder(module: nn.Module) -> bool:
    """Whether a module is one of these models, which need not be loaded."""
    return _name_of(module) in _PARTS


def layers_as_one(
    decoder: Any, is_computed: Callable[[Any], bool], shape_of: Callable[[Any], Hashable]
) -> list[Any] | None:
    """Return the layers of a loaded model without its head, if one operator may compute them.

    They have to be what the model's class makes, to compute as Llama's do, and to be alike; no
    instance of a module may have a ``forward`` of its own. Otherwise None is returned.

    Args:
        decoder: any module.
        is_computed: whether an operator computes a layer.
        shape_of: what of a layer has to be the same in all.
    """
    if not is_decoder(decoder):
        return None
    expected, layers = _PARTS[_name_of(decoder)], list(decoder.layers)
    if (
        layers
        and all(_is_stock(one, expected) and is_computed(one) for one in layers)
        and len({*map(shape_of, layers)}) == 1
        and not WatchedModules.of_decoder(decoder).have_own_forward
    ):
        return layers
    return None


def _is_stock(layer: Any, expected: tuple[str, ...]) -> bool:
    parts = (layer, getattr(layer, "self_attn", None), getattr(layer, "mlp", None))
    return (
        tuple(map(_name_of, parts)) == expected
        and not any(getattr(layer.self_attn, name, False) for name in _OTHERS_OF_ATTENTION)
        and getattr(layer, "ada_rms_norm_t_cond", None) is None
        and len({norm.variance_epsilon for norm in head_norms(layer)}) <= 1
    )


def products_of(layer: Any) -> tuple[Any, Any, Any, Any]:
    """Return the linear layers of a decoder layer of vLLM: qkv, output, gate and up, down."""
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
    name = class_name(module)
    for package in _PACKAGES:
        name = name.removeprefix(package)
    return name
