"""Libraries of the system that upstream's compiled files need, and pip cannot install."""

from __future__ import annotations

import ctypes

from distribution.errors import DistributionError

NUMA = "libnuma.so.1"


def check_system_libraries(target: str) -> None:
    """Stop if a library is missing without which an engine for `target` does not start.

    Raises:
        DistributionError: names it, and the package that has it.
    """
    if target != "cpu":
        return
    try:
        ctypes.CDLL(NUMA)
    except OSError:
        raise DistributionError(
            f"{NUMA} was not found, which upstream's compiled files for CPUs need: install it "
            "(Debian, Ubuntu: apt install libnuma1; Fedora: dnf install numactl-libs)."
        ) from None
