"""How the rows of one request are named in a worker's batch.

The scheduler knows a beam search, or a request with guidance, as one request. The worker runs it as
several rows: the first has the request's own id, the others an id derived from it.
"""

from __future__ import annotations

from typing import Any

from vllm.hf_compat.call.request import HFRequest

_SEPARATOR = "#row"

GUIDE = 1
"""The row of a request with ``guidance_scale`` that sees the negative prompt."""


def row_id(request_id: str, row: int) -> str:
    """Return the id of a request's row."""
    return f"{request_id}{_SEPARATOR}{row}" if row else request_id


def split_row_id(name: str) -> tuple[str, int]:
    """Return the request that a row belongs to, and which of its rows it is."""
    request_id, separator, row = name.rpartition(_SEPARATOR)
    return (request_id, int(row)) if separator else (name, 0)


def prompt_length(state: Any) -> int:
    """Return how many tokens of a row `generate()` computes at once; the others come one by one.

    Args:
        state: ``CachedRequestState`` of the row.
    """
    hf_request = HFRequest.of(state.sampling_params)
    if hf_request.is_guided and split_row_id(state.req_id)[1] == GUIDE:
        return len(hf_request.negative_prompt_ids or [0])
    return int(state.num_prompt_tokens)
