"""``vllm.platforms.cpu`` and ``vllm.utils.ompmultiprocessing``: Triton's kernels, and cores."""

from vllm.fork.cores import split_cores
from vllm.fork.slot_mapping import compute_slot_mapping

__all__ = ["compute_slot_mapping", "split_cores"]
