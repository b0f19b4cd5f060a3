"""Matrix products as Hugging Face calls them: ``torch.nn.functional.linear`` on plain weights."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional

from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.platforms import current_platform


class HFLinearMethod(UnquantizedLinearMethod):
    """vLLM's method without packed weights: they stay as loaded, and PyTorch multiplies.

    Source: ``torch.nn.Linear.forward``. Other platforms than CPU do so anyway.
    """

    def process_weights_after_loading(self, layer: Any) -> None:
        if current_platform.is_cpu():
            layer.cpu_linear = functional.linear
        else:
            super().process_weights_after_loading(layer)


class HFEmbeddingMethod(UnquantizedEmbeddingMethod):
    """The same for the output embedding, whose packed copy vLLM keeps beside the weight."""

    def process_weights_after_loading(self, layer: Any) -> None:
        if current_platform.is_cpu():
            layer.cpu_linear = functional.linear
        else:
            super().process_weights_after_loading(layer)


def use_plain_products(model: nn.Module) -> None:
    """Give every unquantised linear layer and embedding of `model` the methods above."""
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(layer, LinearBase) and type(method) is UnquantizedLinearMethod:
            layer.quant_method = HFLinearMethod()
        elif (
            isinstance(layer, VocabParallelEmbedding) and type(method) is UnquantizedEmbeddingMethod
        ):
            layer.quant_method = HFEmbeddingMethod()
