"""``vllm.v1.engine.core``: what is asked of a running engine."""

from vllm.fork.weight_updates import check_sleep

__all__ = ["check_sleep"]
