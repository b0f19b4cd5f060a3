"""The processes of a server: ``launcher``, ``vllm.v1.engine`` and ``vllm.v1.utils``."""

from vllm.fork.processes import end_with_parent, exit_if_engine_died

__all__ = ["end_with_parent", "exit_if_engine_died"]
