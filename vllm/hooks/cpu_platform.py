"""``vllm.platforms.cpu`` and ``vllm.utils.ompmultiprocessing``: Triton's kernels, and cores."""

from vllm.fork.models.slot_mapping import compute_slot_mapping
from vllm.fork.processes.cores import split_cores

__all__ = ["compute_slot_mapping", "split_cores"]
