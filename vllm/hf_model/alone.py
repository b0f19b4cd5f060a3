"""One request of a Transformers model, as `generate()` computes it, with its cache in blocks."""

from __future__ import annotations

import torch

from vllm.hf_model.generate_call import GenerateCall
from vllm.hf_model.model_cache import Blocks, ModelCache


class Alone:
    """Computes one request at a time.

    Args:
        call: of the model.
        cache: of the model, in blocks.
    """

    def __init__(self, call: GenerateCall, cache: ModelCache) -> None:
        self._call = call
        self._cache = cache

    def __call__(
        self, input_ids: torch.Tensor, known: int, blocks: Blocks, dropped: int = 0
    ) -> tuple[torch.Tensor, int]:
        """Compute the tokens of a request that the model has not seen.

        Args:
            input_ids: int64 [1, num_tokens], the whole sequence.
            known: how many of them the model has seen.
            blocks: of the request.
            dropped: how many of these the model has dropped from its cache since.

        Returns:
            The last logits, [1, vocab_size], in the model's dtype, and how many tokens are dropped
            now: Phi-3 begins another cache where a text outgrows the context it was first trained
            with.
        """
        seq_len = input_ids.shape[1]
        cache = self._call.empty_cache()
        if known:
            self._cache.load(cache, blocks, dropped, known)
        logits, after = self._call(input_ids, known, cache)
        if after is not cache:
            dropped = seq_len - after.get_seq_length()
            known = dropped
        self._cache.store(after.layers, blocks, known, seq_len)
        return logits, dropped

    def all_logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of all tokens, [num_tokens, vocab_size], as ``model(input_ids)``."""
        return self._call.model(input_ids=input_ids, use_cache=False, return_dict=True).logits[0]
