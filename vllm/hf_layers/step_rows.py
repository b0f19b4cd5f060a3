"""Where the requests of a step of the engine lie in its rows, as `generate()` computes them.

A prompt is computed at once, and each token after it by itself. A step of the engine has tokens of
both kinds for one request where that comes back after a preemption, with all that it had
generated, or where drafts are checked: these tokens are pieces of their own, as if each was a
request that goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch

from vllm.fork.models.runners import prompt_lengths, rows_of_requests
from vllm.forward_context import get_forward_context, is_forward_context_available

_PIECES, _PIECES_OF_STEP = "_hf_pieces", "_hf_pieces_of_step"

Run = tuple[bool, int, int]
"""Whether pieces of one row, first row, end."""


@dataclass(frozen=True)
class Pieces:
    """What is computed in the shapes that it has alone; numbers, since tensors of a few are slow.

    Attributes:
        first_rows: of each, and the number of rows.
        requests: which request of the batch each is of.
        seq_lens: how many tokens the last row of each sees.
    """

    first_rows: list[int]
    requests: list[int]
    seq_lens: list[int]

    @functools.cached_property
    def spans(self) -> list[tuple[int, int, int]]:
        """Index, first row and end of each piece that has rows."""
        rows = enumerate(pairwise(self.first_rows))
        return [(piece, begin, end) for piece, (begin, end) in rows if begin < end]

    @functools.cached_property
    def single(self) -> list[int]:
        """Which pieces have one row."""
        rows = enumerate(pairwise(self.first_rows))
        return [piece for piece, (begin, end) in rows if end - begin == 1]

    @functools.cached_property
    def several(self) -> list[tuple[int, int, int]]:
        """Those of `spans` with more than one row."""
        return [span for span in self.spans if span[2] - span[1] > 1]

    @functools.cached_property
    def longest(self) -> int:
        """How many tokens the last row of one of `several` sees at most; 0 without any."""
        return max((self.seq_lens[piece] for piece, _, _ in self.several), default=0)

    @functools.cached_property
    def spans_of_several(self) -> torch.Tensor:
        """`several` as int64 [n, 4]: first row and end, request, tokens that the last row sees."""
        found = [
            (begin, end, self.requests[piece], self.seq_lens[piece])
            for piece, begin, end in self.several
        ]
        return torch.tensor(found, dtype=torch.int64).view(-1, 4)

    @functools.cached_property
    def runs(self) -> tuple[Run, ...]:
        """See `runs_of`."""
        return runs_of(self.first_rows)


def pieces_of(metadata: Any) -> Pieces:
    """Return the pieces of a step, as a layer of attention sees them.

    Args:
        metadata: of its attention, which keeps them for the step's other layers.
    """
    if (found := getattr(metadata, _PIECES, None)) is None:
        lengths: list[int] = metadata.seq_lens.tolist()
        starts: list[int] = metadata.query_start_loc[: len(lengths) + 1].tolist()
        found = Pieces(starts, [*range(len(lengths))], lengths)
        if not _has_chunks(metadata):
            found = _with_single_tokens(found)
        object.__setattr__(metadata, _PIECES, found)
    return found


def _has_chunks(metadata: Any) -> bool:
    """Whether its rows are chunks of requests (``ChunkedLocalAttention``), and not requests."""
    return hasattr(metadata, "make_virtual_batches_block_table")


def _with_single_tokens(whole: Pieces) -> Pieces:
    """Make pieces of their own of what is computed token by token."""
    lengths, starts = whole.seq_lens, whole.first_rows
    several = [request for request, _, _ in whole.several]
    of_prompts = None
    if several and is_forward_context_available():
        of_prompts = prompt_lengths(get_forward_context().no_compile_layers, several)
    if of_prompts is None:
        return whole
    num_single = [0] * len(lengths)
    for row, length in zip(several, of_prompts, strict=True):
        num_single[row] = min(max(lengths[row] - length, 0), starts[row + 1] - starts[row])
    return _split(whole, num_single) if any(num_single) else whole


def _split(whole: Pieces, num_single: list[int]) -> Pieces:
    """Cut the last `num_single` rows of each request off, one by one."""
    firsts, requests, seen = [], [], []
    for row, (begin, end) in enumerate(pairwise(whole.first_rows)):
        single, length = num_single[row], whole.seq_lens[row]
        if end - begin > single or begin == end:
            firsts.append(begin)
            requests.append(row)
            seen.append(length - single)
        for left in range(single, 0, -1):
            firsts.append(end - left)
            requests.append(row)
            seen.append(length - left + 1)
    return Pieces([*firsts, whole.first_rows[-1]], requests, seen)


def query_starts(num_rows: int) -> list[int]:
    """Return where the pieces of this step begin, and the number of rows; one piece, if the rows
    are not the step's tokens.
    """
    pieces = _pieces_of_step(num_rows)
    return [0, num_rows] if pieces is None else pieces.first_rows


def step_runs(num_rows: int) -> tuple[Run, ...]:
    """Return what of the rows of this step is computed at once: see `runs_of`, `query_starts`."""
    pieces = _pieces_of_step(num_rows)
    return runs_of([0, num_rows]) if pieces is None else pieces.runs


def _pieces_of_step(num_rows: int) -> Pieces | None:
    """Return the pieces of this step; None if the rows are not its tokens."""
    if is_forward_context_available():
        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict) and metadata:
            first = next(iter(metadata.values()))
            pieces: Pieces | None = getattr(first, _PIECES_OF_STEP, None)
            if pieces is None and (pieces := _pieces_of_requests(metadata)) is not None:
                object.__setattr__(first, _PIECES_OF_STEP, pieces)
            if pieces is not None and pieces.first_rows[-1] == num_rows:
                return pieces
    return None


def _pieces_of_requests(metadata: Mapping[str, Any]) -> Pieces | None:
    """Return the pieces of a step by the first layer that knows its requests, or by its runner."""
    for one in metadata.values():
        numbers = (getattr(one, name, None) for name in ("seq_lens", "query_start_loc"))
        if all(number is not None for number in numbers) and not _has_chunks(one):
            return pieces_of(one)
    found = rows_of_requests(get_forward_context().no_compile_layers)
    if found is None:
        return None
    starts, lengths = found
    return _with_single_tokens(Pieces(starts, [*range(len(lengths))], lengths))


def runs_of(starts: Sequence[int]) -> tuple[Run, ...]:
    """Return what is computed at once: a piece of several rows, or all pieces of one row that
    follow each other.

    Args:
        starts: first row of each piece, and the number of rows.
    """
    num_rows = starts[-1]
    if starts == [*range(num_rows + 1)]:  # as most steps are
        return ((True, 0, num_rows),) if num_rows else ()
    spans = [span for span in pairwise(starts) if span[0] < span[1]]
    merged: list[Run] = []
    for is_single, group in groupby(spans, key=lambda span: span[1] - span[0] == 1):
        members = list(group)
        if is_single:
            merged.append((True, members[0][0], members[-1][1]))
        else:
            merged.extend((False, begin, end) for begin, end in members)
    return tuple(merged)
