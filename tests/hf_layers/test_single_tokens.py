"""What attention of single tokens asks of a step is worked out once for all layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm.hf_layers.attention.single_tokens import single_tokens_of


def metadata_of(counts: list[int], lengths: list[int]) -> Any:
    """A step in which each request has so many rows, and sees so many tokens."""
    return SimpleNamespace(
        query_start_loc=torch.tensor([0, *counts]).cumsum(0).int(),
        seq_lens=torch.tensor(lengths).int(),
        block_table=torch.arange(4 * len(counts), dtype=torch.int32).view(-1, 4),
    )


@pytest.mark.parametrize(
    ("counts", "rows", "requests"),
    [
        ([1, 1, 1], slice(0, 3), [0, 1, 2]),
        ([1, 1, 5], slice(0, 2), [0, 1]),
        ([5, 1, 1, 7], slice(5, 7), [1, 2]),
        ([1, 0, 1], slice(0, 2), [0, 2]),
        ([1, 4, 1], [0, 5], [0, 2]),
    ],
)
def test_the_rows_of_a_step(
    counts: list[int], rows: slice | list[int], requests: list[int]
) -> None:
    lengths = [30 + 10 * row for row in range(len(counts))]
    metadata = metadata_of(counts, lengths)
    found = single_tokens_of(metadata)
    assert found is not None
    taken = found.rows.tolist() if isinstance(found.rows, torch.Tensor) else found.rows
    assert taken == rows
    assert found.stops.tolist() == [lengths[row] for row in requests]
    assert torch.equal(found.blocks, metadata.block_table[requests])
    assert single_tokens_of(metadata) is found


def test_prompts_alone_have_none() -> None:
    assert single_tokens_of(metadata_of([3, 5], [3, 5])) is None


def test_layers_of_one_step_have_windows_of_their_own() -> None:
    found = single_tokens_of(metadata_of([1, 1], [30, 50]))
    assert found is not None
    starts = {window: found.starts(window).tolist() for window in (0, 40, 10, 40)}
    assert starts == {0: [0, 0], 40: [0, 10], 10: [20, 40]}
