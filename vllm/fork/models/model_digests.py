"""Digests of the models of this process, for those who say of what an answer was made."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch import nn

_DIGESTS: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()


def remember_digests(model: nn.Module, *, weights: str, config: str) -> None:
    """Let `digests_of` find the digests of a loaded model.

    Args:
        model: that was loaded.
        weights: of all its tensors by name.
        config: of its configuration.
    """
    _DIGESTS[model] = {"weights": weights, "config": config}


def digests_of(model: nn.Module) -> dict[str, str]:
    """Return the digests ``weights`` and ``config`` of a model.

    Raises:
        KeyError: it was loaded by a loader that takes none.
    """
    return _DIGESTS[model]
