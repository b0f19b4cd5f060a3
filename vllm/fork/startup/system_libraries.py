"""What vLLM's compiled operations for CPUs need of the system.

Why: Without libnuma vLLM logs that its operations did not load, and fails much later.
Upstream status: Not reported yet: a matter of defaults.
Exit condition: Upstream's wheel brings the library, or says that it is missing.
"""

from __future__ import annotations

import ctypes

from vllm.platforms import current_platform

NUMA = "libnuma.so.1"


def check_system_libraries() -> None:
    """Stop where vLLM would log that its operations did not load, and fail much later.

    Raises:
        ValueError: names the library that is missing, and the package that has it.
    """
    if not current_platform.is_cpu():
        return
    try:
        ctypes.CDLL(NUMA)
    except OSError:
        raise ValueError(
            f"{NUMA} was not found, which vLLM's compiled operations for CPUs need: install it "
            "(Debian, Ubuntu: apt install libnuma1; Fedora: dnf install numactl-libs)."
        ) from None
