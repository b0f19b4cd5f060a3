"""The name that somebody may have meant by one that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 60  # characters that are compared: a client's name may be as long as its body


def nearest_name(name: str, known: Iterable[str], likeness: float = 0.7) -> str | None:
    """Return the known name that is most like `name`; None if none is like it.

    Args:
        name: as it was given, with its words joined in any way.
        known: what there is.
        likeness: from 0 to 1, of `difflib`, below which nothing was meant.
    """
    plain = {_plain(candidate): candidate for candidate in known}
    found = difflib.get_close_matches(_plain(name[:_LONGEST]), plain, n=1, cutoff=likeness)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
