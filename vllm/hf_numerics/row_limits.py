"""For how many requests decoder layers are computed without calling their modules."""

from __future__ import annotations

from vllm.hf_numerics.activations import parts_of_runs

MOST_ROWS = 64
"""More are multiplied by the library of matrix products (`ManyRows`), beside which calls of modules
take little time."""


def counts_without_remainder(width: int) -> frozenset[int]:
    """Return for how many single rows an activation can be computed at once (`activations`).

    Args:
        width: elements of a row.
    """
    counts = range(1, MOST_ROWS + 1)
    return frozenset(n for n in counts if len(parts_of_runs(((True, 0, n),), width)) == 1)
