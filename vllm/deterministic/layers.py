"""Gives the layers of a model portable bits, when it is made, or says which one cannot have them.

What is replaced is chosen by exact class. What holds parameters and is not known here stops the
start; what computes without parameters is found by `check.check_portable_runner`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from vllm.deterministic.activations import portable_activation
from vllm.deterministic.attention import (
    PortableAttentionBackend,
    PortableAttentionImpl,
    kv_cache_spec,
)
from vllm.deterministic.decoder import layers_of
from vllm.deterministic.fusion import Source
from vllm.deterministic.linear import PortableEmbeddingMethod, PortableLinearMethod, adds_ranks
from vllm.deterministic.logits import PortableLogitsProcessor
from vllm.deterministic.mixtures.method import has_portable_experts, use_portable_experts
from vllm.deterministic.mixtures.shared_experts import (
    add_parts_of_shared_experts,
    use_portable_shared_expert,
)
from vllm.deterministic.norms import (
    forward_gemma_rms_norm,
    forward_layer_norm,
    forward_rms_norm,
)
from vllm.deterministic.positions.alibi import portable_slopes
from vllm.deterministic.positions.rotary import is_rotary, portable_rotation
from vllm.deterministic.refusal import refusal
from vllm.deterministic.transformers_backend import portable_hf_module
from vllm.fork.models.decoder_forward import use_one_operator
from vllm.fork.models.modules import replace_modules
from vllm.fork.models.norm_kind import norm_kind
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm
from vllm.model_executor.layers.linear import (
    LinearBase,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_HEAD_SIZES = range(16, 257, 16)

_ATTENTION = (CPUAttentionBackendImpl, TritonAttentionImpl)
"""What vLLM makes on a CPU, and on a GPU where `engine_args` chooses; both tell their numbers."""

_NORMS: dict[type[nn.Module], Any] = {
    RMSNorm: forward_rms_norm,
    GemmaRMSNorm: forward_gemma_rms_norm,
    LayerNorm: forward_layer_norm,
    nn.LayerNorm: forward_layer_norm,
}


def use_portable_layers(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Give each layer of `model`, which is not loaded yet, portable bits.

    Models that hold other models come here several times; what is prepared stays as it is.

    Raises:
        ValueError: a layer cannot have them; the sentence names it.
    """
    if vllm_config.model_config.runner_type not in ("generate", "draft"):
        raise refusal(type(model).__name__, model, "only the logits of text are specified")
    _use_portable_embeddings(model, vllm_config)
    add_parts_of_shared_experts(model)
    for name, layer in vllm_config.compilation_config.static_forward_context.items():
        if isinstance(layer, AttentionLayerBase):  # not all are submodules
            _use_portable_attention(name, layer)
    max_length = vllm_config.model_config.max_model_len
    has_graphs = bool(vllm_config.compilation_config.cudagraph_mode)

    def portable(name: str, layer: nn.Module) -> nn.Module:
        if has_graphs and isinstance(layer, MoERunner):
            raise refusal(name, layer, "a CUDA graph would keep the experts of one step")
        return _portable(name, layer, max_length)

    replace_modules(model, portable)
    use_one_operator(model, vllm_config, layers_of)


def _portable(name: str, layer: nn.Module, max_length: int) -> nn.Module:
    """Return `layer`, changed, or what takes its place."""
    if isinstance(layer, LinearBase):
        _use_portable_product(name, layer)
    elif isinstance(layer, MoERunner):
        use_portable_experts(name, layer)
    elif norm_kind(layer) in _NORMS:
        _use_portable_norm(name, layer)
    elif is_rotary(layer):
        if (rotation := portable_rotation(layer)) is None:
            raise refusal(name, layer, "this rotary embedding is not specified")
        return rotation
    elif type(layer) is LogitsProcessor:
        return PortableLogitsProcessor(layer)
    elif (activation := portable_activation(layer)) is not None:
        return activation
    elif use_portable_shared_expert(layer):
        return layer
    elif (hf_module := portable_hf_module(name, layer, max_length)) is not None:
        return hf_module
    elif layer._parameters and not (
        isinstance(layer, VocabParallelEmbedding | nn.Embedding) or has_portable_experts(layer)
    ):
        raise refusal(name, layer, "it is not specified")
    return layer


def _use_portable_embeddings(model: nn.Module, vllm_config: VllmConfig) -> None:
    is_tied = getattr(vllm_config.model_config.hf_text_config, "tie_word_embeddings", False)
    embeddings = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, VocabParallelEmbedding)
    ]
    has_own_head = any(isinstance(layer, ParallelLMHead) for _, layer in embeddings)
    for name, layer in embeddings:
        if isinstance(layer.quant_method, PortableEmbeddingMethod):
            continue
        if type(layer.quant_method) is not UnquantizedEmbeddingMethod:
            raise refusal(name, layer, "it is quantised")
        is_own_head = isinstance(layer, ParallelLMHead)
        layer.quant_method = PortableEmbeddingMethod(
            is_head=is_own_head or (is_tied and not has_own_head),
            is_looked_up=not is_own_head or is_tied,
        )


def _use_portable_product(name: str, layer: LinearBase) -> None:
    if isinstance(layer.quant_method, PortableLinearMethod):
        return
    if type(layer.quant_method) is not UnquantizedLinearMethod:
        raise refusal(name, layer, "it is quantised")
    if adds_ranks(layer):
        if not layer.reduce_results:
            raise refusal(name, layer, "its model adds the ranks' parts in an order of its own")
        layer.reduce_results = False  # the method adds them
    layer.quant_method = PortableLinearMethod()


def _use_portable_attention(name: str, layer: Any) -> None:
    implementation: Any = getattr(layer, "impl", None)
    if isinstance(implementation, PortableAttentionImpl):
        return
    if type(layer) is not Attention or type(implementation) not in _ATTENTION:
        raise refusal(name, layer, "only causal attention over keys and values is specified")
    if layer.attn_type != AttentionType.DECODER:
        raise refusal(name, layer, f"{layer.attn_type} attention is not specified")
    if layer.head_size not in _HEAD_SIZES or layer.head_size_v != layer.head_size:
        raise refusal(name, layer, "heads must be of 16, 32, ... 256 numbers")
    slopes = implementation.alibi_slopes
    if slopes is not None and (slopes := portable_slopes(slopes)) is None:
        raise refusal(name, layer, "slopes of ALiBi other than 2^(-j / 64) are not specified")
    layer.impl = PortableAttentionImpl(layer, slopes)
    layer.attn_backend = PortableAttentionBackend
    layer.get_kv_cache_spec = partial(kv_cache_spec, layer)


def _use_portable_norm(name: str, layer: Any) -> None:
    if getattr(layer, "variance_size_override", None) is not None:
        raise refusal(name, layer, "a norm over a part of a row is not specified")
    forward = partial(_NORMS[norm_kind(layer)], Source(), layer)
    if isinstance(layer, nn.LayerNorm):
        layer.forward = forward  # type: ignore[method-assign]
    else:
        layer._forward_method = forward
