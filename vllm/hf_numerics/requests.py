"""Where the requests of a step of the engine lie in its rows."""

from __future__ import annotations

from itertools import groupby, pairwise

from vllm.forward_context import get_forward_context, is_forward_context_available


def query_starts(num_rows: int) -> list[int]:
    """Return where the requests of this step begin, and the number of rows; one request, if the
    rows are not the step's tokens.
    """
    if is_forward_context_available():
        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict) and metadata:
            starts = getattr(next(iter(metadata.values())), "query_start_loc", None)
            if starts is not None and int(starts[-1]) == num_rows:
                return starts.tolist()
    return [0, num_rows]


def runs(starts: list[int]) -> list[tuple[bool, int, int]]:
    """Return (whether requests of one row, first row, end) of what is computed at once.

    Args:
        starts: first row of each request, and the number of rows.
    """
    spans = [span for span in pairwise(starts) if span[0] < span[1]]
    merged = []
    for is_single, group in groupby(spans, key=lambda span: span[1] - span[0] == 1):
        members = list(group)
        if is_single:
            merged.append((True, members[0][0], members[-1][1]))
        else:
            merged.extend((False, begin, end) for begin, end in members)
    return merged
