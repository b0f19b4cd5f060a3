"""Whether each layer of a model computes with Hugging Face's bits, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.attention.attention import HFAttentionImpl
from vllm.hf_layers.attention.model_attention import attention_of
from vllm.hf_layers.layers.experts import HFExpertsMethod, why_not_hf_experts
from vllm.hf_layers.layers.linear import HFConv1DMethod, HFEmbeddingMethod, HFLinearMethod
from vllm.hf_layers.layers.split_linear import SplitLinearMethod
from vllm.hf_layers.replacement import has_hf_operations
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Parity = tuple[bool, str]
"""Whether bits are Hugging Face's, and how they are computed or why they are not."""

_OURS = (HFLinearMethod, HFConv1DMethod, HFEmbeddingMethod)
_UNKNOWN = "vLLM's kernel, for which Hugging Face's operations are not known here"
_OF_PYTORCH = (nn.Embedding, nn.LayerNorm)
"""Modules whose rows do not know of each other, which Transformers uses, too."""


def parity_of_layers(model: nn.Module, vllm_config: VllmConfig) -> Iterator[tuple[str, bool, str]]:
    """Yield the class of each layer of a model, whether its bits are Hugging Face's, and why.

    Args:
        model: prepared by `use_hf_layers`.
        vllm_config: of the engine.
    """
    judge = _Judge(vllm_config)
    seen: set[int] = set()
    for layer in _layers(model, seen, judge):
        yield type(layer).__name__, *judge(layer)
    for layer in vllm_config.compilation_config.static_forward_context.values():
        is_attention = isinstance(layer, AttentionLayerBase)  # not all are submodules
        if is_attention and id(layer) not in seen:
            yield type(layer).__name__, *judge(layer)


def _layers(module: nn.Module, seen: set[int], judge: _Judge) -> Iterator[nn.Module]:
    """Yield what computes, and not what computes as a part of it."""
    if id(module) in seen:
        return
    seen.add(id(module))
    if judge.knows(module):
        yield module
        if not isinstance(module, BaseLayerWithLoRA):
            return
    elif module._parameters:
        yield module
    for child in module.children():
        yield from _layers(child, seen, judge)


class _Judge:
    """Judges the layers of one engine."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._config = vllm_config.model_config.hf_text_config
        self._why_none = _why_none(vllm_config)
        self._cache_dtype = vllm_config.cache_config.cache_dtype

    def knows(self, layer: nn.Module) -> bool:
        """Whether `layer` is of a kind that is judged as a whole."""
        kinds = (LinearBase, VocabParallelEmbedding, CustomOp, MoERunner, AttentionLayerBase)
        return isinstance(layer, (*kinds, *_OF_PYTORCH, BaseLayerWithLoRA))

    def __call__(self, layer: Any) -> Parity:
        """Return whether a layer has Hugging Face's bits, and why."""
        if isinstance(layer, _OF_PYTORCH):
            return True, "PyTorch's own module, as in Transformers"
        if isinstance(layer, AttentionLayerBase) and self._cache_dtype != "auto":
            return False, f"keys and values are rounded to {self._cache_dtype}: other tokens"
        if self._why_none is not None:
            return False, self._why_none
        if isinstance(layer, BaseLayerWithLoRA):
            return False, "vLLM's kernels add adapters"
        if isinstance(layer, LinearBase | VocabParallelEmbedding):
            return _parity_of_product(layer)
        if isinstance(layer, MoERunner):
            return self._parity_of_experts(layer)
        if isinstance(layer, MambaBase):
            return False, "states are computed by vLLM's kernel"
        if isinstance(layer, AttentionLayerBase):
            return self._parity_of_attention(layer)
        if has_hf_operations(layer):
            return True, "Hugging Face's operations in its order"
        return False, _UNKNOWN

    def _parity_of_attention(self, layer: Any) -> Parity:
        implementation = getattr(layer, "impl", None)
        if isinstance(implementation, HFAttentionImpl):
            return True, "PyTorch's attention, for each request alone"
        if not current_platform.is_cpu():
            return False, "attention on GPUs is vLLM's kernel"
        return False, attention_of(self._config).why_not(implementation) or _UNKNOWN

    def _parity_of_experts(self, runner: MoERunner) -> Parity:
        if isinstance(runner.routed_experts.quant_method, HFExpertsMethod):
            return True, "Transformers' router and experts, for each request alone"
        if not current_platform.is_cpu():
            return False, "experts on GPUs are vLLM's kernel"
        return False, why_not_hf_experts(runner, self._config) or _UNKNOWN


def _why_none(vllm_config: VllmConfig) -> str | None:
    """Return why no layer of vLLM's has Hugging Face's bits; None if some have."""
    if ForkFlags.of(vllm_config).is_portable:
        return "deterministic=True: the bits of its specification"
    if ForkFlags.of(vllm_config).hf_compat == "rules":
        return 'hf_compat="rules": vLLM\'s own layer'
    if vllm_config.model_config.dtype == torch.float32:
        return "float32: vLLM's kernel rounds otherwise, so one answer in 1,000 has another token"
    return None


def _parity_of_product(layer: Any) -> Parity:
    method: Any = layer.quant_method
    whole = method.whole if isinstance(method, SplitLinearMethod) else method
    if not current_platform.is_cpu():
        return False, "products on GPUs are vLLM's kernel"
    if type(whole) is UnquantizedEmbeddingMethod and not isinstance(layer, ParallelLMHead):
        return True, "rows are looked up"
    if not isinstance(whole, _OURS):
        return False, f"vLLM's kernel ({type(whole).__name__})"
    if layer.weight.dtype == torch.float32:
        return False, "float32 weights: rows of several requests are one product"
    if layer.weight.dim() not in (0, 2) and layer.weight.numel():
        return False, "a convolution, which vLLM computes elsewhere"
    if isinstance(whole, HFEmbeddingMethod) and not isinstance(layer, ParallelLMHead):
        return True, "rows are looked up; logits, if they are its, are PyTorch's products"
    return True, "PyTorch's products, for each request alone"
