"""The digest of receipts, and of what they are about."""

from __future__ import annotations

import hashlib

_PERSON = b"vllm-receipt-1"


def digest(data: bytes | memoryview, size: int) -> bytes:
    """Return the digest of `data`: BLAKE2b (RFC 7693) of `size` bytes, personalised for receipts.

    Args:
        data: of any length.
        size: 1 to 64.
    """
    return hashlib.blake2b(data, digest_size=size, person=_PERSON).digest()
