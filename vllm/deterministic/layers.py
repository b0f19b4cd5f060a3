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
from vllm.deterministic.gates import use_portable_gate
from vllm.deterministic.joint_norms import use_joint_norms
from vllm.deterministic.linear import PortableEmbeddingMethod, PortableLinearMethod, adds_ranks
from vllm.deterministic.logits import PortableLogitsProcessor
from vllm.deterministic.mixtures.method import has_portable_experts, use_portable_experts
from vllm.deterministic.mixtures.router_layer import use_portable_router_layer
from vllm.deterministic.mixtures.shared_experts import (
    add_parts_of_shared_experts,
    use_portable_shared_expert,
)
from vllm.deterministic.norms import (
    forward_cohere_layer_norm,
    forward_gemma_rms_norm,
    forward_joint_rms_norm,
    forward_layer_norm,
    forward_nemotron_layer_norm,
    forward_rms_norm,
)
from vllm.deterministic.parallel_branches import use_portable_sum
from vllm.deterministic.positions.alibi import portable_slopes
from vllm.deterministic.positions.rotary import is_rotary, portable_rotation
from vllm.deterministic.refusal import refusal
from vllm.deterministic.states.convolution import ConvolutionMethod
from vllm.deterministic.states.gated_norm import has_portable_gate
from vllm.deterministic.transformers_backend import portable_hf_module
from vllm.fork.models.decoder_forward import use_one_operator
from vllm.fork.models.modules import class_name, replace_modules
from vllm.fork.models.norm_kind import norm_kind
from vllm.fork_kernels.portable.attention import HEAD_SIZES
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm
from vllm.model_executor.layers.linear import (
    LinearBase,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

_ATTENTION = (CPUAttentionBackendImpl, TritonAttentionImpl)
"""What vLLM makes on a CPU, and on a GPU where `engine_args` chooses; both tell their numbers."""

_NORMS: dict[type[nn.Module], Any] = {
    RMSNorm: forward_rms_norm,
    GemmaRMSNorm: forward_gemma_rms_norm,
    LayerNorm: forward_layer_norm,
    nn.LayerNorm: forward_layer_norm,
}
_NORMS_OF_MODELS: dict[str, Any] = {
    "vllm.model_executor.models.commandr.LayerNorm": forward_cohere_layer_norm,
    "vllm.model_executor.models.nemotron.NemotronLayerNorm1P": forward_nemotron_layer_norm,
    "vllm.model_executor.layers.minimax_rms_norm.rms_norm_tp.MiniMaxText01RMSNormTP": (
        forward_joint_rms_norm
    ),
}
"""By the names of their classes, whose files import whole models."""


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
        if isinstance(layer, MambaBase):
            _use_portable_states(name, layer)
        elif isinstance(layer, AttentionLayerBase):  # not all are submodules
            _use_portable_attention(name, layer)
    has_graphs = bool(vllm_config.compilation_config.cudagraph_mode)
    known = _read_elsewhere(vllm_config)

    def portable(name: str, layer: nn.Module) -> nn.Module:
        if has_graphs and isinstance(layer, MoERunner):
            raise refusal(name, layer, "a CUDA graph would keep the experts of one step")
        return _portable(name, layer, vllm_config.model_config, known)

    replace_modules(model, portable)
    use_one_operator(model, vllm_config, layers_of)


def _read_elsewhere(vllm_config: VllmConfig) -> set[int]:
    """Return the identities of parameters that attention or a router reads, whoever holds them."""
    layers: list[Any] = list(vllm_config.compilation_config.static_forward_context.values())
    sinks = (getattr(getattr(layer, "impl", None), "sinks", None) for layer in layers)
    routers = (getattr(layer, "router", None) for layer in layers)
    corrections = (getattr(router, "e_score_correction_bias", None) for router in routers)
    return {id(one) for one in (*sinks, *corrections) if one is not None}


def _holds_unknown(layer: nn.Module, known: set[int]) -> bool:
    """Return whether a layer itself has a parameter that nothing portable is known to read."""
    if isinstance(layer, VocabParallelEmbedding | nn.Embedding | MambaBase):
        return False
    if has_portable_experts(layer) or has_portable_gate(layer):
        return False
    return any(one is not None and id(one) not in known for one in layer._parameters.values())


def _portable(name: str, layer: nn.Module, model: ModelConfig, known: set[int]) -> nn.Module:
    """Return `layer`, changed, or what takes its place.

    Args:
        name: of the layer.
        layer: any of the model.
        model: the layer's.
        known: parameters of `_read_elsewhere`.
    """
    use_portable_gate(layer)
    use_portable_sum(layer)
    use_joint_norms(layer)
    if isinstance(layer, LinearBase):
        _use_portable_product(name, layer, model)
    elif isinstance(layer, MoERunner):
        use_portable_experts(name, layer)
    elif (norm := _norm_of(layer)) is not None:
        _use_portable_norm(name, layer, norm)
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
    elif (hf_module := portable_hf_module(name, layer, model.max_model_len)) is not None:
        return hf_module
    elif _holds_unknown(layer, known):
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


def _use_portable_product(name: str, layer: LinearBase, model: ModelConfig) -> None:
    if isinstance(layer.quant_method, PortableLinearMethod | ConvolutionMethod):
        return
    if type(layer.quant_method) is not UnquantizedLinearMethod:
        raise refusal(name, layer, "it is quantised")
    if type(layer) is GateLinear:
        use_portable_router_layer(name, layer, model)
        return
    if adds_ranks(layer):
        if not layer.reduce_results:
            raise refusal(name, layer, "its model adds the ranks' parts in an order of its own")
        layer.reduce_results = False  # the method adds them
    layer.quant_method = PortableLinearMethod()


def _use_portable_states(name: str, layer: MambaBase) -> None:
    # Most models have none of these layers, whose classes take long to import.
    from vllm.deterministic.states.taken import use_portable_states

    use_portable_states(name, layer)


def _use_portable_attention(name: str, layer: Any) -> None:
    implementation: Any = getattr(layer, "impl", None)
    if isinstance(implementation, PortableAttentionImpl):
        return
    if type(layer) is not Attention or type(implementation) not in _ATTENTION:
        raise refusal(name, layer, "only causal attention over keys and values is specified")
    if layer.attn_type != AttentionType.DECODER:
        raise refusal(name, layer, f"{layer.attn_type} attention is not specified")
    if layer.head_size not in HEAD_SIZES or layer.head_size_v != layer.head_size:
        raise refusal(name, layer, "heads must be of 16, 32, ... 256 numbers")
    slopes = implementation.alibi_slopes
    if slopes is not None and (slopes := portable_slopes(slopes)) is None:
        raise refusal(name, layer, "slopes of ALiBi other than 2^(-j / 64) are not specified")
    layer.impl = PortableAttentionImpl(layer, slopes)
    layer.attn_backend = PortableAttentionBackend
    layer.get_kv_cache_spec = partial(kv_cache_spec, layer)


def _norm_of(layer: nn.Module) -> Any:
    """Return the forward of a norm over rows, with its source before it; None for other layers."""
    known = _NORMS.get(norm_kind(layer)) or _NORMS_OF_MODELS.get(class_name(layer))
    weight = getattr(layer, "weight", None)
    return None if weight is not None and weight.dim() > 1 else known


def _use_portable_norm(name: str, layer: Any, norm: Any) -> None:
    if getattr(layer, "variance_size_override", None) is not None:
        raise refusal(name, layer, "a norm over a part of a row is not specified")
    forward = partial(norm, Source(), layer)
    if type(layer).forward is CustomOp.forward:
        layer._forward_method = forward
    else:
        layer.forward = forward
