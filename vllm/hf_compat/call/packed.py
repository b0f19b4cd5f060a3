"""Long lists of a configuration as they travel: one piece, which nobody walks through on the way.

A request passes copies, checks, two encodings and a garbage collector before a worker builds its
processors, and for beams in every step; each would look at every list of a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

LISTS = ("sequence_bias", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
"""The fields that may be long."""


def packed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in types that vLLM's message transport accepts, `LISTS` as bytes.

    Args:
        fields: by HF's names, in types that JSON has.
    """
    carried = fields.carried if isinstance(fields, PackedFields) else fields
    return {
        name: json.dumps(value).encode()
        if name in LISTS and not isinstance(value, bytes)
        else value
        for name, value in carried.items()
    }


class PackedFields(Mapping[str, Any]):
    """Fields that were `packed`; each list is read when it is asked for.

    Args:
        carried: the packed ones.
    """

    def __init__(self, carried: dict[str, Any]) -> None:
        self.carried = carried

    def __getitem__(self, name: str) -> Any:
        value = self.carried[name]
        return json.loads(value) if name in LISTS else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.carried)

    def __len__(self) -> int:
        return len(self.carried)

    def __contains__(self, name: object) -> bool:
        return name in self.carried

    def __repr__(self) -> str:
        return repr(dict(self))
