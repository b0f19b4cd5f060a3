"""How many cases the tests try: few in the default run, all that was promised in the long one."""

from __future__ import annotations

import os

IS_LONG = os.environ.get("HF_COMPAT_TESTS") == "long"
"""Set by ``make test-long``."""


def size(default: int, in_long_run: int) -> int:
    """Return the number of cases of this run."""
    return in_long_run if IS_LONG else default
