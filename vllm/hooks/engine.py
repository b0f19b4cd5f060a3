"""``vllm.v1.engine.core``: what is asked of a running engine."""

from vllm.fork.live_weights.arguments import check_sleep
from vllm.fork.live_weights.engine import (
    noticing_new_adapters,
    noticing_new_weights,
    refusing_without_weights,
)

__all__ = [
    "check_sleep",
    "noticing_new_adapters",
    "noticing_new_weights",
    "refusing_without_weights",
]
