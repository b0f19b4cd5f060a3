"""The models whose weights can change, for those who are given a model alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch import nn

    from vllm.fork.live_weights.model import LiveWeights

REFUSED = "No answers now: "
"""How a request's error begins while the weights are those of no model."""

_LIVE: WeakKeyDictionary[nn.Module, LiveWeights] = WeakKeyDictionary()


def remember_live_weights(model: nn.Module, weights: LiveWeights) -> None:
    """Let `live_weights_of` find the weights of a model, for as long as it lives."""
    _LIVE[model] = weights


def live_weights_of(model: nn.Module) -> LiveWeights | None:
    """Return the weights of a model; None if upstream's own way of changing them is used."""
    return _LIVE.get(model)


def unless_live(reload: Callable[..., Any], is_begin: bool) -> Callable[..., Any]:
    """Return upstream's begin or end of an update, which models with live weights have their own
    of.

    Args:
        reload: ``initialize_layerwise_reload`` or ``finalize_layerwise_processing``.
        is_begin: whether it is the first.
    """

    @wraps(reload)
    def begin_or_end(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        live = live_weights_of(model)
        if live is None:
            return reload(model, *args, **kwargs)
        return live.begin() if is_begin else live.finish()

    return begin_or_end
