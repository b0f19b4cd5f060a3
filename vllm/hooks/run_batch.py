"""``vllm.entrypoints.launchers.run_batch``: the lines of its files. It imports that module."""

from vllm.hf_compat.server.run_batch import accept_hf_lines

__all__ = ["accept_hf_lines"]
