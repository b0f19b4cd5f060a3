"""``vllm.platforms.cpu`` and ``vllm.utils.ompmultiprocessing``: Triton's kernels, and cores."""

from vllm.fork.models.slot_mapping import compute_slot_mapping
from vllm.fork.processes.cores import split_cores
from vllm.fork.startup.kernel_overrides import ask_dictionaries_alone

__all__ = ["compute_slot_mapping", "split_cores"]

ask_dictionaries_alone()  # upstream imports this module before it looks for kernels
