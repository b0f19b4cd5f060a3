"""Processors of HF that cost much more than they do, with the same bits and without the cost.

HF's classes copy the scores, or build a mask as wide as the vocabulary, to change a few tokens of
each row. Transformers still checks the parameters and orders the list; the functions here only
stand for the ``__call__`` of its objects. What is not here runs as HF wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation import logits_process as hf

if TYPE_CHECKING:
    from vllm.hf_compat.batch import Rows

Step = Callable[["Rows", torch.Tensor], torch.Tensor]
"""Takes scores float32 [num_rows, vocab_size] and returns them processed, perhaps in place."""


def in_place_step(processor: hf.LogitsProcessor, device: torch.device) -> Step | None:
    """Return what does the same as `processor`, or None if HF's own class is to do it."""
    kind = type(processor)
    if kind is hf.TemperatureLogitsWarper:
        return partial(_divide, processor.temperature)
    if kind is hf.TopKLogitsWarper:
        return partial(_keep_top_k, processor.top_k)
    if kind is hf.MinPLogitsWarper and processor.min_tokens_to_keep == 1:
        return partial(_keep_min_p, processor.min_p)
    if kind is hf.MinLengthLogitsProcessor:
        return partial(_forbid_eos, Columns(processor.eos_token_id), _min_length(processor))
    if kind is hf.MinNewTokensLengthLogitsProcessor:
        return partial(_forbid_eos, Columns(processor.eos_token_id), _min_new_tokens(processor))
    if kind is hf.SuppressTokensLogitsProcessor:
        return partial(_forbid, Columns(processor.suppress_tokens))
    if kind in (hf.SequenceBiasLogitsProcessor, hf.NoBadWordsLogitsProcessor):
        return SequenceBias(processor.sequence_bias, device)
    if kind is hf.NoRepeatNGramLogitsProcessor and device.type == "cpu":
        return partial(_forbid_ngrams, processor.ngram_size)
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
        token_ids: int [num_tokens].
    """

    def __init__(self, token_ids: torch.Tensor) -> None:
        self._token_ids = token_ids
        self._columns: torch.Tensor | None = None

    def of(self, scores: torch.Tensor) -> torch.Tensor:
        """Return int64 [num_columns] on the device of `scores`."""
        if self._columns is None:  # the width is known now, and never changes
            is_column = (self._token_ids >= 0) & (self._token_ids < scores.shape[1])
            self._columns = self._token_ids[is_column].to(scores.device, torch.int64)
        return self._columns


def _forbid(columns: Columns, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    return scores.index_fill_(1, columns.of(scores), -torch.inf)


def _forbid_eos(
    columns: Columns, is_short: Callable[[Any], bool], rows: Rows, scores: torch.Tensor
) -> torch.Tensor:
    """Forbid the columns in the rows whose requests are short."""
    short = [i for i, state in enumerate(rows.states) if is_short(state)]
    if len(short) == len(scores):
        return _forbid(columns, rows, scores)
    if short:
        indices = rows.tables.tensor(short, torch.int64)
        scores[indices[:, None], columns.of(scores)] = -torch.inf
    return scores


def _min_length(processor: hf.MinLengthLogitsProcessor) -> Callable[[Any], bool]:
    return lambda state: state.num_tokens < processor.min_length


def _min_new_tokens(processor: hf.MinNewTokensLengthLogitsProcessor) -> Callable[[Any], bool]:
    return lambda state: state.num_outputs < processor.min_new_tokens


# --- sequences -----------------------------------------------------------------------------------
class SequenceBias:
    """``SequenceBiasLogitsProcessor``, which ``NoBadWordsLogitsProcessor`` is as well.

    Args:
        sequence_bias: each sequence's bias, added to its last token after all others.
        device: where the scores are.
    """

    def __init__(self, sequence_bias: dict[tuple[int, ...], float], device: torch.device) -> None:
        columns = sorted({sequence[-1] for sequence in sequence_bias})
        place = {token: i for i, token in enumerate(columns)}
        self._columns = torch.tensor(columns, dtype=torch.int64, device=device)
        self._alone = torch.zeros(len(columns), device=device)
        for sequence, bias in sequence_bias.items():
            if len(sequence) == 1:
                self._alone[place[sequence[0]]] = bias
        longer = {sequence: bias for sequence, bias in sequence_bias.items() if len(sequence) > 1}
        self._width = max(map(len, longer), default=1) - 1
        self._layers = [
            _Layer(layer, place, self._width, device) for layer in _layers(list(longer.items()))
        ]

    def __call__(self, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
        """Add the biases to scores float32 [num_rows, vocab_size], in place."""
        bias = self._alone.expand(len(scores), -1)
        if self._layers:
            bias = bias.clone()
            last = rows.token_ids(self._width)
            for layer in self._layers:
                bias[:, layer.places] += layer.biases_after(last)
        scores.add_(0.0)  # HF adds to every token, which makes -0.0 to 0.0
        scores[:, self._columns] += bias
        return scores


class _Layer:
    """Longer sequences of which no two end in the same token.

    Args:
        biases: the sequences, each with its bias.
        place: last token to its place among the tokens that have a bias.
        width: of the longest sequence of any layer, without its last token.
        device: where the scores are.
    """

    def __init__(
        self,
        biases: Sequence[tuple[tuple[int, ...], float]],
        place: dict[int, int],
        width: int,
        device: torch.device,
    ) -> None:
        prefixes = [(-1,) * (width + 1 - len(ids)) + ids[:-1] for ids, _ in biases]
        self._prefixes = torch.tensor(prefixes, dtype=torch.int64, device=device)
        self._is_any = self._prefixes < 0
        self._biases = torch.tensor([bias for _, bias in biases], device=device)
        self.places = torch.tensor([place[ids[-1]] for ids, _ in biases], device=device)

    def biases_after(self, last: torch.Tensor) -> torch.Tensor:
        """Return float32 [num_rows, num_sequences] after the tokens int64 [num_rows, width]."""
        is_complete = ((last[:, None] == self._prefixes) | self._is_any).all(dim=-1)
        return torch.where(is_complete, self._biases, 0.0)


def _layers(
    biases: Sequence[tuple[tuple[int, ...], float]],
) -> list[list[tuple[tuple[int, ...], float]]]:
    """Divide sequences so that those with the same last token are added in HF's order."""
    layers: list[list[tuple[tuple[int, ...], float]]] = []
    times_ended: dict[int, int] = {}
    for ids, bias in biases:
        number = times_ended.get(ids[-1], 0)
        times_ended[ids[-1]] = number + 1
        if number == len(layers):
            layers.append([])
        layers[number].append((ids, bias))
    return layers


def _forbid_ngrams(size: int, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """``NoRepeatNGramLogitsProcessor``; on CPU, where the matches can be counted without a wait."""
    ids = rows.token_ids()
    num_windows = ids.shape[1] - size + 1
    if num_windows <= 0:
        return scores
    matches = torch.ones(len(ids), num_windows, dtype=torch.bool)
    for i in range(size - 1):
        matches &= ids[:, i : i + num_windows] == ids[:, num_windows + i, None]
    row, window = matches.nonzero(as_tuple=True)
    token = ids[row, window + size - 1]
    is_token = token < scores.shape[1]  # before a shorter sequence there is none
    scores[row[is_token], token[is_token]] = -torch.inf
    return scores
