"""Processors of HF that cost much more than they do, with the same bits and without the cost.

HF's classes copy the scores, or build a mask as wide as the vocabulary, to change a few tokens of
each row. Transformers still checks the parameters and orders the list; the functions here only
stand for the ``__call__`` of its objects. What is neither here nor in `sequence_bias` and `ngrams`
runs as HF wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation import logits_process as hf

from vllm.hf_compat.logits.ngrams import forbid_ngrams

if TYPE_CHECKING:
    from vllm.hf_compat.logits.batch import Rows

Step = Callable[["Rows", torch.Tensor], torch.Tensor]
"""Takes scores float32 [num_rows, vocab_size] and returns them processed, perhaps in place."""


def in_place_step(
    processor: hf.LogitsProcessor, prompt_len: int, device: torch.device
) -> Step | None:
    """Return what does the same as `processor`, or None if HF's own class is to do it.

    Args:
        processor: made by HF for a configuration.
        prompt_len: of the prompt that HF was told.
        device: where the scores are.
    """
    kind = type(processor)
    if kind is hf.TemperatureLogitsWarper:
        return partial(_divide, processor.temperature)
    if kind is hf.TopKLogitsWarper:
        return partial(_keep_top_k, processor.top_k)
    if kind is hf.MinPLogitsWarper and processor.min_tokens_to_keep == 1:
        return partial(_keep_min_p, processor.min_p)
    if kind is hf.MinLengthLogitsProcessor:
        return partial(_forbid_where, Columns(processor.eos_token_id), _min_length(processor))
    if kind is hf.MinNewTokensLengthLogitsProcessor:
        return partial(_forbid_where, Columns(processor.eos_token_id), _min_new_tokens(processor))
    if kind is hf.SuppressTokensLogitsProcessor:
        return partial(_forbid, Columns(processor.suppress_tokens))
    if kind is hf.SuppressTokensAtBeginLogitsProcessor:
        columns = Columns(processor.begin_suppress_tokens)
        return partial(_forbid_where, columns, _begin(processor, prompt_len))
    if kind is hf.NoRepeatNGramLogitsProcessor and device.type == "cpu":
        return partial(forbid_ngrams, processor.ngram_size)
    return None


# --- whole rows ----------------------------------------------------------------------------------
def _divide(temperature: float, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    return scores.div_(temperature)


def _keep_top_k(top_k: int, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    smallest = scores.topk(min(top_k, scores.shape[1])).values[:, -1:]
    return scores.masked_fill_(scores < smallest, -torch.inf)


def _keep_min_p(min_p: float, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """HF looks the best token up to keep it, though no part of its probability exceeds it."""
    probs = scores.softmax(dim=-1)
    return scores.masked_fill_(probs < min_p * probs.amax(dim=-1, keepdim=True), -torch.inf)


# --- some tokens ---------------------------------------------------------------------------------
class Columns:
    """Tokens as columns of the scores; like HF, without those that the model does not have.

    Args:
        token_ids: int [num_tokens], some perhaps more than once.
    """

    def __init__(self, token_ids: torch.Tensor) -> None:
        self._token_ids = token_ids
        self._columns: torch.Tensor | None = None

    def of(self, scores: torch.Tensor) -> torch.Tensor:
        """Return int64 [num_columns] on the device of `scores`."""
        if self._columns is None:  # the width is known now, and never changes
            is_column = (self._token_ids >= 0) & (self._token_ids < scores.shape[1])
            columns = self._token_ids[is_column].unique()
            self._columns = columns.to(scores.device, torch.int64)
        return self._columns


def _forbid(columns: Columns, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    return scores.index_fill_(1, columns.of(scores), -torch.inf)


def _forbid_where(
    columns: Columns, is_one: Callable[[Any], bool], rows: Rows, scores: torch.Tensor
) -> torch.Tensor:
    """Forbid the columns in the rows whose requests are of some kind."""
    chosen = [i for i, state in enumerate(rows.states) if is_one(state)]
    if len(chosen) == len(scores):
        return _forbid(columns, rows, scores)
    if chosen:
        indices = rows.tables.indices(chosen)
        scores[indices[:, None], columns.of(scores)] = -torch.inf
    return scores


def _min_length(processor: hf.MinLengthLogitsProcessor) -> Callable[[Any], bool]:
    return lambda state: state.num_tokens < processor.min_length


def _min_new_tokens(processor: hf.MinNewTokensLengthLogitsProcessor) -> Callable[[Any], bool]:
    return lambda state: state.num_outputs < processor.min_new_tokens


def _begin(
    processor: hf.SuppressTokensAtBeginLogitsProcessor, prompt_len: int
) -> Callable[[Any], bool]:
    number = processor.begin_index - prompt_len  # HF counts the prompt
    return lambda state: state.num_outputs == number
