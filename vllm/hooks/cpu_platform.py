"""``vllm.platforms.cpu``: what stands in for Triton's kernels."""

from vllm.fork.slot_mapping import compute_slot_mapping

__all__ = ["compute_slot_mapping"]
