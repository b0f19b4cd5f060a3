"""What Transformers has where a checkpoint has nothing."""

from __future__ import annotations

from torch import nn

from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding


def begin_with_hf_biases(model: nn.Module) -> None:
    """Fill biases with zeros, as ``PreTrainedModel._init_weights`` does; of one that a checkpoint
    lacks, vLLM takes what memory holds.

    Args:
        model: of vLLM, which is not loaded yet.
    """
    for layer in model.modules():
        bias = getattr(layer, "bias", None)
        if isinstance(layer, LinearBase | VocabParallelEmbedding) and isinstance(
            bias, nn.Parameter
        ):
            bias.data.zero_()
