"""What Transformers reads of a checkpoint, and what it has where that has nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.transformers_utils.repo_utils import file_or_path_exists

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_FIRST = "model.safetensors"
_FORMATS = ("auto", "hf", "safetensors", "fastsafetensors")


def use_hf_files(model: Any, vllm_config: VllmConfig) -> None:
    """Let vLLM read the one file that ``from_pretrained`` reads; it would read all that there are,
    or those of an index.

    Args:
        model: of vLLM, which is not loaded yet.
        vllm_config: of its engine.
    """
    config = vllm_config.model_config
    is_chosen = getattr(model, "allow_patterns_overrides", None) is not None
    if vllm_config.load_config.load_format not in _FORMATS or is_chosen:
        return
    if file_or_path_exists(config.model, _FIRST, config.revision):
        model.allow_patterns_overrides = [_FIRST]  # DefaultModelLoader looks at it


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
