"""The processes of a server: ``launcher``, ``vllm.v1.engine`` and ``vllm.v1.utils``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.fork.processes.processes import end_with_parent, exit_if_engine_died

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["end_with_parent", "exit_if_engine_died", "refuse_what_comes"]


def refuse_what_comes(app: FastAPI) -> None:
    """As `shutdown.refuse_what_comes`; every process imports this module, and few serve."""
    from vllm.fork.processes import shutdown

    shutdown.refuse_what_comes(app)
