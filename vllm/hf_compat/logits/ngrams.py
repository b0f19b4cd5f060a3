"""``NoRepeatNGramLogitsProcessor`` and ``EncoderNoRepeatNGramLogitsProcessor``, in place.

HF's second class makes a list of the prompt for each position of an n-gram before it looks at one,
so that a size of a billion takes all memory. Here an n-gram that is longer than the tokens in which
it is looked for costs nothing, and any other what these are long for each of its tokens at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.hf_compat.logits.batch import RequestState, Rows


def forbid_ngrams(size: int, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """Forbid what would complete an n-gram of the sequence a second time, in place.

    On CPU, where the matches can be counted without a wait (``NoRepeatNGramLogitsProcessor``).

    Args:
        size: of the n-grams.
        rows: with their tokens.
        scores: float32 [num_rows, vocab_size].
    """
    ids = rows.token_ids()
    if ids.shape[1] < size:
        return scores
    row, position = _continuations(ids, ids[:, ids.shape[1] - size + 1 :])
    token = ids[row, position]
    is_token = token < scores.shape[1]  # before a shorter sequence there is none
    scores[row[is_token], token[is_token]] = -torch.inf
    return scores


def forbid_ngrams_of_prompt(size: int, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """Forbid what would complete an n-gram of the prompt, in place.

    Args:
        size: of the n-grams (``EncoderNoRepeatNGramLogitsProcessor``).
        rows: with their tokens, of which HF reads the last ones on the CPU, too.
        scores: float32 [num_rows, vocab_size].

    Raises:
        IndexError: a prompt has a token that the scores do not have.
    """
    long = [i for i, state in enumerate(rows.states) if len(state.known_prompt) >= size]
    if not long:
        return scores
    last = rows.select(long).token_ids(size - 1).cpu()
    for tokens, i in zip(last, long, strict=True):
        prompt = _prompt_ids(rows.states[i])
        _, position = _continuations(prompt, tokens[None])
        scores[i, prompt[0, position].to(scores.device)] = -torch.inf
    return scores


def _prompt_ids(state: RequestState) -> torch.Tensor:
    """Return the prompt as int64 [1, prompt_len], made once."""
    if state.prompt_ids is None:
        state.prompt_ids = torch.tensor([state.known_prompt], dtype=torch.int64)
    return state.prompt_ids


def _continuations(ids: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows and columns of the tokens of `ids` before which the tokens `last` stand.

    Args:
        ids: int64 [num_rows, length].
        last: int64 [num_rows, fewer than length].
    """
    before = last.shape[1]
    number = ids.shape[1] - before
    matches = torch.ones(len(ids), number, dtype=torch.bool)
    for i in range(1, before + 1):  # backwards: most places are none after a few tokens
        matches &= ids[:, before - i : before - i + number] == last[:, -i, None]
        if i & (i - 1) == 0 and not matches.any():
            break
    row, column = matches.nonzero(as_tuple=True)
    return row, column + before
