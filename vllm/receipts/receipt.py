"""A receipt as JSON: its fields, its seals, and the chain of digests of the logits.

``docs/receipts.md`` is the specification, with a test vector.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from vllm.fork.digests import digest

VERSION = 1
SEALED = ("model", "flags", "prompt", "parameters")
"""The fields that have a seal, in the order in which the chain begins with them."""

Receipt = dict[str, Any]

_SEAL_BYTES = 8


def seal(value: Any) -> str:
    """Return the seal of a field of a receipt, 16 hexadecimal digits.

    Args:
        value: in types that JSON has.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return digest(text.encode(), _SEAL_BYTES).hex()


def seals_of(fields: Receipt) -> dict[str, str]:
    """Return the seals that the fields of a receipt ought to have."""
    return {name: seal(fields[name]) for name in SEALED}


def first_link(seals: dict[str, str], size: int) -> bytes:
    """Return what the chain of a receipt begins with: the digest of its seals, `size` bytes."""
    return digest(b"".join(bytes.fromhex(seals[name]) for name in SEALED), size)


def next_link(link: bytes, token: int, row: bytes) -> bytes:
    """Return the link after `link`.

    Args:
        link: the one before.
        token: of the answer.
        row: the `digest` of the logits that chose it, float32 [vocab_size], little endian.
    """
    return digest(link + token.to_bytes(4, "little") + row, len(row))


def make_receipt(
    fields: Receipt, tokens: Sequence[int], logits: Sequence[bytes], finish: Sequence[Any]
) -> Receipt:
    """Return the receipt of an answer.

    Args:
        fields: ``version``, ``numerics`` and those that are `SEALED`.
        tokens: of the answer.
        logits: for each token, as the ``row`` of `next_link`.
        finish: vLLM's ``finish_reason`` and ``stop_reason``.
    """
    seals = seals_of(fields)
    link = first_link(seals, len(logits[0]))
    chain = []
    for token, row in zip(tokens, logits, strict=True):
        chain.append(link := next_link(link, token, row))
    return {
        **fields,
        "seals": seals,
        "output": list(tokens),
        "finish": list(finish),
        "logits": base64.b64encode(b"".join(chain)).decode(),
    }


def chain_of(receipt: Receipt) -> list[bytes]:
    """Return the links of a receipt, one for each token of its output.

    Raises:
        ValueError: there are more or fewer than tokens.
    """
    chain, count = base64.b64decode(receipt["logits"], validate=True), len(receipt["output"])
    size, rest = divmod(len(chain), count) if count else (_SEAL_BYTES, len(chain))
    if rest or not _SEAL_BYTES <= size <= 64:
        raise ValueError(f"{len(chain)} bytes are no digests of {count} tokens")
    return [chain[i : i + size] for i in range(0, len(chain), size)]
