"""Rotations that attention makes, where it appends the keys to its cache: one kernel on GPUs.

A rotary embedding comes before its layer's attention, and knows neither the values nor the cache.
If nothing but attention reads what it rotates (see `vllm.deterministic.fusion`), it leaves with the
memory of queries and keys what is to be done, and attention does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vllm.fork_kernels.portable.rotary import portable_rotate


@dataclass(frozen=True)
class Rotation:
    """What is to be done to queries and keys, [num_tokens, heads, head_size].

    Attributes:
        positions: int64 [num_tokens].
        table: as `portable_rotate` takes it.
        is_interleaved: likewise.
    """

    positions: torch.Tensor
    table: torch.Tensor
    is_interleaved: bool

    def rotate(self, *tensors: torch.Tensor) -> None:
        """Do it now, in place."""
        for x in tensors:
            portable_rotate(x, self.positions, self.table, is_interleaved=self.is_interleaved)


@dataclass(frozen=True)
class _Left:
    rotation: Rotation
    places: tuple[Any, Any]  # of queries and keys; the tensors themselves would never be freed


def leave(rotation: Rotation, query: torch.Tensor, key: torch.Tensor) -> None:
    """Leave a rotation to the attention that takes queries and keys."""
    left = _Left(rotation, (_place_of(query), _place_of(key)))
    for x in (query, key):
        storage: Any = x.untyped_storage()
        storage._rotation_left = left


def is_left(key: torch.Tensor) -> bool:
    """Whether keys have not been rotated yet."""
    return getattr(key.untyped_storage(), "_rotation_left", None) is not None


def taken(query: torch.Tensor, key: torch.Tensor) -> Rotation | None:
    """Return the rotation that was left for queries and keys, once; None if there is none.

    Raises:
        RuntimeError: it was left for others in the same memory.
    """
    storages: list[Any] = [x.untyped_storage() for x in (query, key)]
    left = [getattr(storage, "_rotation_left", None) for storage in storages]
    if left[0] is None and left[1] is None:
        return None
    places = (_place_of(query), _place_of(key))
    if left[0] is not left[1] or left[0] is None or left[0].places != places:
        raise RuntimeError(
            "deterministic=True: attention takes queries or keys that are not those which were to "
            "be rotated, unlike when this model computed its first tokens. Please report the model."
        )
    for storage in storages:
        storage._rotation_left = None
    return left[0].rotation


def _place_of(x: torch.Tensor) -> Any:
    return x.storage_offset(), x.shape
