"""``vllm.v1.engine.core``: what is asked of a running engine, how it answers, and why it did not
start."""

from vllm.fork.live_weights.arguments import check_sleep
from vllm.fork.live_weights.engine import letting_weights_change
from vllm.fork.processes.engine_outputs import sending_directly
from vllm.hf_layers.missing_kernels import naming_exact_mode

__all__ = ["check_sleep", "letting_weights_change", "naming_exact_mode", "sending_directly"]
