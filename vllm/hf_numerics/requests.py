"""The requests of a step of the engine, each computed alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

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


def each_request(
    compute: Callable[..., tuple[torch.Tensor, ...]], *rows: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return what `compute` returns for the rows of each request, one after the other.

    Args:
        compute: of tensors to tensors, all with the same number of rows.
        rows: [num_tokens, ...], of the tokens of a step.
    """
    spans = [span for span in pairwise(query_starts(len(rows[0]))) if span[0] < span[1]]
    parts = [compute(*(x[begin:end] for x in rows)) for begin, end in spans]
    return tuple(torch.cat(found) for found in zip(*parts, strict=True))
