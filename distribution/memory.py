"""Checks that there is memory to compile and to run with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from distribution.errors import DistributionError

GIB = 1 << 30
_TOLERANCE = 0.9  # a machine sold with 4 GiB shows a little less
_PER_COMPILER = GIB
"""Bytes that one compiler process of csrc/ takes at most, about."""


def check_memory(needed: int) -> None:
    """Stop if this machine, or the container that it is, has less memory than needed, in bytes.

    Raises:
        DistributionError: says how much there is.
    """
    there = total_memory()
    if there < needed * _TOLERANCE:
        raise DistributionError(
            f"There are {there / GIB:.1f} GiB of memory, and {needed / GIB:.0f} GiB are needed to "
            "compile the kernels and to run a model: use a larger machine, or raise the limit of "
            "the container."
        )


def total_memory() -> int:
    """Return the machine's memory in bytes, or the limit of the container if that is lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits()])


def compilers_at_once() -> int:
    """Return how many compilers may run at the same time with this machine's cores and memory."""
    return max(1, min(len(os.sched_getaffinity(0)), total_memory() // _PER_COMPILER))


def _limits(root: Path = Path("/sys/fs/cgroup")) -> Iterable[int]:
    """Yield what control groups, of either version, allow this process's container."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        file = root / name
        text = file.read_text().strip() if file.exists() else ""
        if text.isdigit():
            yield int(text)
