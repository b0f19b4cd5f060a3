"""Whether the operators with portable bits are there.

They are the arithmetic of deterministic mode: their results depend on their arguments alone, not on
the batch, the threads or the machine. ``docs/numerics`` in the repository specifies every bit.
There is no second implementation to fall back on: without the compiled library there is no such
mode.
"""

from . import library

__all__ = ["has_portable_operators"]

_is_there = library.load()


def has_portable_operators() -> bool:
    """Whether the operators can be called."""
    return _is_there
