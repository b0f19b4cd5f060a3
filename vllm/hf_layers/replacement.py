"""Gives the layers of a model Hugging Face's operations, when it is made.

The choice is made on each layer object, so that two engines of one process can differ; without the
flags nothing is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.models.modules import replace_modules
from vllm.fork.models.norm_kind import norm_kind
from vllm.hf_layers.layers.activations import (
    by_request,
    forward_gelu_and_mul,
    forward_mul_and_silu,
    forward_silu_and_mul,
)
from vllm.hf_layers.layers.linear import use_plain_products
from vllm.hf_layers.layers.norms import forward_gemma_rms_norm, forward_rms_norm, scaling_of
from vllm.hf_layers.layers.rotary import forward_rotary, takes_few_tokens_at_once, use_hf_angles
from vllm.hf_layers.layers.split_linear import split_projections
from vllm.hf_layers.models import facts_of
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.activation import (
    GELU,
    FastGELU,
    GeluAndMul,
    GELUTanh,
    MulAndSilu,
    NewGELU,
    QuickGELU,
    ReLUSquaredActivation,
    SiluAndMul,
)
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.config import VllmConfig

_GATED: dict[type[CustomOp], Callable[..., Any]] = {
    SiluAndMul: forward_silu_and_mul,
    MulAndSilu: forward_mul_and_silu,
    GeluAndMul: forward_gelu_and_mul,
}
_NATIVE = (GELU, GELUTanh, NewGELU, FastGELU, QuickGELU, ReLUSquaredActivation)
"""Activations whose ``forward_native`` is Hugging Face's, operation by operation."""

_PREPARED = "has_hf_operations"


def use_hf_layers(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Make the layers of `model`, which is not loaded yet, compute what hf_compat and split_qkv ask
    for; nothing without these flags.

    Raises:
        ValueError: see `split_projections`.
    """
    flags = ForkFlags.of(vllm_config)
    if flags.has_hf_layers and vllm_config.model_config.dtype != torch.float32:
        # In float32 vLLM's faster ones give the same tokens: all that differs is the last bits.
        config = vllm_config.model_config.hf_text_config
        _follow_hf(model, config)
        if current_platform.is_cpu():
            use_plain_products(model, config)
            _use_hf_experts(model, config)
            _use_hf_attention(model, config)
            _use_decoder_rows(model, vllm_config)
    if flags.splits_projections:
        split_projections(model, required=flags.split_qkv is True)


def _follow_hf(model: nn.Module, config: PreTrainedConfig) -> None:
    replace_modules(
        model, lambda _, layer: _prepared(layer, config) if isinstance(layer, CustomOp) else None
    )


def _prepared(layer: CustomOp, config: PreTrainedConfig) -> nn.Module:
    forward = _forward_of(layer, config)
    if forward is None:
        return layer
    if not isinstance(layer, RMSNorm | GemmaRMSNorm | LayerNorm):
        layer = copy(layer)  # vLLM keeps these for the next model of the process
    if isinstance(layer, RotaryEmbeddingBase):
        use_hf_angles(layer)
    layer._forward_method = partial(forward, layer)
    setattr(layer, _PREPARED, True)
    return layer


def has_hf_operations(layer: nn.Module) -> bool:
    """Whether `use_hf_layers` has given a layer Hugging Face's operations."""
    return getattr(layer, _PREPARED, False)


def _forward_of(layer: CustomOp, config: PreTrainedConfig) -> Callable[..., Any] | None:
    """Return a function of `layer` and its input, or None to leave the layer as it is."""
    kind: Any = norm_kind(layer)
    if kind is RMSNorm and layer.variance_size_override is None:
        return partial(forward_rms_norm, scaling=scaling_of(type(config).__module__))
    if kind is GemmaRMSNorm:
        return forward_gemma_rms_norm
    if kind is LayerNorm and (layer.weight is None or layer.weight.dtype != torch.float32):
        return LayerNorm.forward_native  # PyTorch's function
    if kind in _GATED:
        return _GATED[kind]
    if kind in _NATIVE:
        return _forward_native
    if isinstance(layer, RotaryEmbeddingBase):
        return forward_rotary if takes_few_tokens_at_once(kind) else kind.forward_native
    return None


def _forward_native(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return by_request(layer.forward_native, x)


def _use_hf_attention(model: nn.Module, config: PreTrainedConfig) -> None:
    # The backend's module needs the platform's kernels, which other platforms do not have.
    from vllm.hf_layers.attention.model_attention import attention_of

    kind = attention_of(config)
    for layer in model.modules():
        upstream = getattr(layer, "impl", None)
        if kind.can_replace(upstream):
            layer.impl = kind(upstream, facts_of(config).scales_query)


def _use_decoder_rows(model: nn.Module, vllm_config: VllmConfig) -> None:
    from vllm.fork.models.decoder_forward import use_one_operator
    from vllm.hf_layers.decoder.decoder_rows import layers_of

    use_one_operator(model, vllm_config, layers_of)


def _use_hf_experts(model: nn.Module, config: PreTrainedConfig) -> None:
    # vLLM's modules of experts import what imports this module.
    from vllm.hf_layers.layers.experts import use_hf_experts

    use_hf_experts(model, config)
