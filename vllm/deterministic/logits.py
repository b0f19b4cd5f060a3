"""The last step to the logits, with portable bits."""

from __future__ import annotations

import torch

from vllm.fork_kernels.portable.functions import Function, portable_map
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding


class PortableLogitsProcessor(LogitsProcessor):
    """``LogitsProcessor`` of vLLM, whose soft cap is a specified tanh, on float32 logits.

    Args:
        upstream: what the model made.
    """

    def __init__(self, upstream: LogitsProcessor) -> None:
        self.__dict__.update(vars(upstream))
        self._cap = upstream.soft_cap
        self.soft_cap = None
        self.head_dtype = None  # the product gives float32 from any dtype

    def _get_logits(
        self,
        hidden_states: torch.Tensor,
        lm_head: VocabParallelEmbedding,
        embedding_bias: torch.Tensor | None,
        skip_gather: bool = False,
    ) -> torch.Tensor | None:
        """Return capped logits, float32 [num_tokens, vocab_size], which are not scaled yet."""
        logits = super()._get_logits(hidden_states, lm_head, embedding_bias, skip_gather)
        if logits is None or self._cap is None:
            return logits
        return soft_capped(logits, self._cap)


def soft_capped(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(logits / cap) of float32 logits.

    The cap is a tensor, since PyTorch divides by a number on CPU, and on CUDA multiplies with what
    is nearly its reciprocal.
    """
    caps = logits.new_tensor(cap).expand_as(logits)
    return portable_map((logits / caps).contiguous(), Function.TANH) * caps
