"""Where the requests of a step of the engine lie in its rows, as `generate()` computes them.

A prompt is computed at once, and each token after it by itself. A step of the engine has tokens of
both kinds for one request where that comes back after a preemption, with all that it had
generated, or where drafts are checked: these tokens are pieces of their own, as if each was a
request that goes on.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch

from vllm.fork.runners import prompt_lengths
from vllm.forward_context import get_forward_context, is_forward_context_available

_PIECES = "_hf_pieces"


@dataclass(frozen=True)
class Pieces:
    """What is computed in the shapes that it has alone.

    Attributes:
        starts: int32 [pieces + 1] on the CPU, the first row of each, and the number of rows.
        requests: int64 [pieces], which request of the batch each is of.
        seq_lens: int32 [pieces], how many tokens its last row sees.
    """

    starts: torch.Tensor
    requests: torch.Tensor
    seq_lens: torch.Tensor


def pieces_of(metadata: Any) -> Pieces:
    """Return the pieces of a step.

    Args:
        metadata: of its attention, which keeps them for the step's other layers.
    """
    if (found := getattr(metadata, _PIECES, None)) is None:
        found = _pieces(metadata.query_start_loc, metadata.seq_lens)
        object.__setattr__(metadata, _PIECES, found)
    return found


def _pieces(query_start_loc: torch.Tensor, seq_lens: torch.Tensor) -> Pieces:
    starts = query_start_loc[: len(seq_lens) + 1]
    counts = starts.diff()
    whole = Pieces(starts, torch.arange(len(seq_lens)), seq_lens)
    several = (counts > 1).nonzero()[:, 0].tolist()
    lengths = None
    if several and is_forward_context_available():
        lengths = prompt_lengths(get_forward_context().no_compile_layers, several)
    if lengths is None:
        return whole
    num_single = torch.zeros(len(seq_lens), dtype=torch.int64)
    for row, length in zip(several, lengths, strict=True):
        num_single[row] = min(max(int(seq_lens[row]) - length, 0), int(counts[row]))
    if not num_single.any():
        return whole
    return _split(starts, seq_lens, num_single)


def _split(starts: torch.Tensor, seq_lens: torch.Tensor, num_single: torch.Tensor) -> Pieces:
    """Cut the last `num_single` rows, int64 [requests], of each request off, one by one."""
    firsts, requests, seen = [], [], []
    for row, single in enumerate(num_single.tolist()):
        begin, end, length = int(starts[row]), int(starts[row + 1]), int(seq_lens[row])
        if end - begin > single or begin == end:
            firsts.append(begin)
            requests.append(row)
            seen.append(length - single)
        for left in range(single, 0, -1):
            firsts.append(end - left)
            requests.append(row)
            seen.append(length - left + 1)
    return Pieces(
        torch.tensor([*firsts, int(starts[-1])], dtype=starts.dtype),
        torch.tensor(requests),
        torch.tensor(seen, dtype=seq_lens.dtype),
    )


def query_starts(num_rows: int) -> list[int]:
    """Return where the pieces of this step begin, and the number of rows; one piece, if the rows
    are not the step's tokens.
    """
    if is_forward_context_available():
        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict) and metadata:
            first = next(iter(metadata.values()))
            starts = getattr(first, "query_start_loc", None)
            if starts is not None and int(starts[-1]) == num_rows:
                return pieces_of(first).starts.tolist()
    return [0, num_rows]


def runs(starts: list[int]) -> list[tuple[bool, int, int]]:
    """Return (whether pieces of one row, first row, end) of what is computed at once.

    Args:
        starts: first row of each piece, and the number of rows.
    """
    return list(_runs(tuple(starts)))


@functools.lru_cache(maxsize=4)
def _runs(starts: tuple[int, ...]) -> tuple[tuple[bool, int, int], ...]:
    """Return the same; the layers of a step ask for it one after the other."""
    spans = [span for span in pairwise(starts) if span[0] < span[1]]
    merged: list[tuple[bool, int, int]] = []
    for is_single, group in groupby(spans, key=lambda span: span[1] - span[0] == 1):
        members = list(group)
        if is_single:
            merged.append((True, members[0][0], members[-1][1]))
        else:
            merged.extend((False, begin, end) for begin, end in members)
    return tuple(merged)
