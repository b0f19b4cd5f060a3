"""``vllm.entrypoints.cli``: the commands that the fork adds to ``vllm``."""

from vllm.parity.cli import cmd_init

__all__ = ["cmd_init"]
