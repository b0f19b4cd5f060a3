"""``SequenceBiasLogitsProcessor`` and ``NoBadWordsLogitsProcessor`` at a cost that is linear.

HF's classes go through their sequences one by one, in Python, in every step. Here the prefixes of
all sequences lie in one tensor, so that building and every step cost what the sequences are long
together, however many they are, whatever the longest is and wherever they end.

Bits depend on the order of additions: HF adds the biases of sequences with the same last token in
the order of its dictionary. Those that apply at once differ in length, since their prefixes end at
the same token, so that a token needs as many places for summands as its sequences have lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.generation import logits_process as hf

from vllm.fork.on_device import on_device

if TYPE_CHECKING:
    from vllm.hf_compat.logits.batch import Rows

Biases = dict[tuple[int, ...], float]

_AT_ONCE = 1 << 22
"""Tokens that are compared at once: more rows than that allows are taken one after the other."""


def biases_of(fields: Mapping[str, Any], name: str, eos_token_ids: Iterable[int]) -> Biases:
    """Return each sequence's bias, in HF's order.

    Args:
        fields: of a configuration that `check_sequences` has passed.
        name: ``sequence_bias``, or ``bad_words_ids``, of which EOS is none.
        eos_token_ids: of the request.
    """
    if name == "sequence_bias":
        return {tuple(ids): bias for ids, bias in fields[name]}
    eos = {(token_id,) for token_id in eos_token_ids}
    return {ids: -np.inf for ids in map(tuple, fields[name]) if ids not in eos}


def check_sequences(fields: Mapping[str, Any]) -> None:
    """Let HF's constructors look at the sequences of a request; the worker's do not do it again.

    EOS is left out, which HF would look for with a comparison for each bad word and each EOS.

    Args:
        fields: of its configuration.

    Raises:
        ValueError, TypeError, IndexError: HF's reason, the last for a sequence without tokens, too,
            on which it fails in the first step.
    """
    if "sequence_bias" in fields:
        hf.SequenceBiasLogitsProcessor(fields["sequence_bias"])
        _check_lengths((ids for ids, _ in fields["sequence_bias"]))
    if "bad_words_ids" in fields:
        hf.NoBadWordsLogitsProcessor(fields["bad_words_ids"])
        _check_lengths(fields["bad_words_ids"])


def _check_lengths(sequences: Iterable[Sequence[int]]) -> None:
    if not all(sequences):
        raise IndexError("a sequence has no last token")


class SequenceBias:
    """Adds the bias of each sequence to its last token where the others precede.

    Args:
        biases: each sequence's bias, in HF's order of addition.
        device: where the scores are.
    """

    def __init__(self, biases: Biases, device: torch.device) -> None:
        lengths = np.fromiter(map(len, biases), np.int64, len(biases))
        tokens = np.fromiter(chain.from_iterable(biases), np.int64, int(lengths.sum()))
        values = torch.tensor(list(biases.values()), dtype=torch.float32)
        ends = lengths.cumsum()
        columns, place, num_layers = _columns(tokens[ends - 1], lengths)
        self._columns = on_device(columns, device)
        is_alone = lengths == 1
        alone = torch.zeros(len(columns))
        alone[place[is_alone]] = values[is_alone]
        self._alone = on_device(alone, device, torch.float32)
        # HF's order, but the sequences of each token one after the other.
        order = np.flatnonzero(~is_alone)
        order = order[place[order].argsort(kind="stable")]
        self._longer = None
        if len(order):
            prefixes = _Prefixes(tokens, ends[order] - lengths[order], lengths[order] - 1, device)
            summands = _Summands(place[order], num_layers, values[order], device)
            self._longer = prefixes, summands

    def __call__(self, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
        """Add the biases to scores float32 [num_rows, vocab_size], in place."""
        bias = self._alone.expand(len(scores), -1)
        if self._longer is not None:
            prefixes, summands = self._longer
            bias = bias.clone()
            first = 0
            for history in prefixes.histories(rows):
                part = bias[first : first + len(history)]
                summands.add(prefixes.precede(history), part)
                first += len(history)
        scores.add_(0.0)  # HF adds to every token, which makes -0.0 to 0.0
        scores[:, self._columns] += bias
        return scores


def _columns(last: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Order the tokens that have a bias by how many summands one step may bring them.

    Args:
        last: each sequence's last token, int64 [num_sequences].
        lengths: of the sequences, int64 [num_sequences].

    Returns:
        The tokens, int64 [num_columns]; the place of each sequence's among them, int64
        [num_sequences]; and the most summands that longer sequences bring, int64 [num_columns],
        which never increases.
    """
    columns, place = np.unique(last, return_inverse=True)
    pairs = np.unique(np.stack([place, lengths], axis=1)[lengths > 1], axis=0)
    num_layers = np.bincount(pairs[:, 0], minlength=len(columns))
    order = (-num_layers).argsort(kind="stable")
    new_place = np.empty_like(order)
    new_place[order] = np.arange(len(order))
    return columns[order], new_place[place], num_layers[order]


class _Prefixes:
    """What precedes the last token of each sequence.

    Args:
        tokens: of all sequences, int64 [num_tokens].
        starts: where each one's prefix begins there, int64 [num_sequences].
        lengths: of the prefixes, at least 1, int64 [num_sequences].
        device: where they are compared.
    """

    def __init__(
        self, tokens: np.ndarray, starts: np.ndarray, lengths: np.ndarray, device: torch.device
    ) -> None:
        ends = lengths.cumsum()
        within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        prefixes = tokens[np.repeat(starts, lengths) + within]
        self._tokens = on_device(prefixes, device)
        self._from_end = on_device(np.repeat(lengths, lengths) - within, device)
        self._bounds = on_device(np.concatenate([[0], ends]), device)
        self._width = int(lengths.max())

    def histories(self, rows: Rows) -> Sequence[torch.Tensor]:
        """Return the rows' last tokens, int64 [some_rows, width], so many rows at once as fit.

        The first column is no token of a row that has fewer than the longest prefix.
        """
        width = min(self._width, max(state.num_tokens for state in rows.states))
        return rows.token_ids(width + 1).split(max(1, _AT_ONCE // len(self._tokens)))

    def precede(self, history: torch.Tensor) -> torch.Tensor:
        """Return whether prefixes are what rows end with, bool [some_rows, num_sequences]."""
        columns = (history.shape[1] - self._from_end).clamp_(min=0)  # there a row has no token
        differ = history[:, columns] != self._tokens
        before = differ.new_zeros(len(history), len(self._tokens) + 1, dtype=torch.int32)
        torch.cumsum(differ, dim=1, dtype=torch.int32, out=before[:, 1:])
        at_bounds = before[:, self._bounds]
        return at_bounds[:, 1:] == at_bounds[:, :-1]


class _Summands:
    """Biases in the order in which HF adds them.

    Args:
        place: of each sequence's token among the columns, int64 [num_sequences], ascending.
        num_layers: the most summands of each column, int64 [num_columns], never increasing.
        values: the biases, float32 [num_sequences].
        device: where they are added.
    """

    def __init__(
        self, place: np.ndarray, num_layers: np.ndarray, values: torch.Tensor, device: torch.device
    ) -> None:
        # The k-th summands of all columns that may have one lie side by side, for each k.
        self._widths = [int((num_layers > k).sum()) for k in range(num_layers[0])]
        starts = np.concatenate([[0], np.cumsum(self._widths)])
        self._num_places = int(starts[-1])
        first_of_column = np.searchsorted(place, place)
        self._first = on_device(first_of_column, device)
        self._place = on_device(place, device)
        self._starts = on_device(starts, device)
        self._values = on_device(values, device, torch.float32)

    def add(self, applies: torch.Tensor, bias: torch.Tensor) -> None:
        """Add the biases of some sequences, column by column in HF's order.

        Args:
            applies: which ones, bool [num_rows, num_sequences].
            bias: float32 [num_rows, num_columns], changed in place.
        """
        before = applies.cumsum(dim=1) - applies.to(torch.int64)
        number = before - before[:, self._first]  # of those that apply before it to its token
        places = self._starts[number.clamp_(max=len(self._widths) - 1)] + self._place
        places.masked_fill_(~applies, self._num_places)  # where nobody looks
        summands = bias.new_zeros(len(bias), self._num_places + 1)
        summands.scatter_(1, places, self._values.expand(len(bias), -1))
        start = 0
        for width in self._widths:
            bias[:, :width] += summands[:, start : start + width]
            start += width
