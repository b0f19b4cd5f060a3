"""``vllm.v1.engine.core``: what is asked of a running engine, and how it answers."""

from vllm.fork.live_weights.arguments import check_sleep
from vllm.fork.live_weights.engine import letting_weights_change
from vllm.fork.processes.engine_outputs import sending_directly

__all__ = ["check_sleep", "letting_weights_change", "sending_directly"]
