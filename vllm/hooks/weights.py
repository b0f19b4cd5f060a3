"""``vllm.model_executor.model_loader.reload``: where an update of the weights begins and ends."""

from collections.abc import Callable
from typing import Any

from vllm.fork.live_weights.registry import unless_live

__all__ = ["begins_update", "ends_update"]


def begins_update(initialize: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``initialize_layerwise_reload``."""
    return unless_live(initialize, is_begin=True)


def ends_update(finalize: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``finalize_layerwise_processing``."""
    return unless_live(finalize, is_begin=False)
