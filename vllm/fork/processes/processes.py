"""A server's processes end together, and say with their exit status that it was no ordinary end.

Why: A server whose engine died ends with status 0, and its other processes stay.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/engine-outlives-parent.md).
Exit condition: Upstream's processes end with their parent, and with a status that says why.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient

logger = logging.getLogger("vllm.fork")

GRACE_S = 5
"""Seconds that a process has to let go of what it holds, once its parent is gone."""


_THREAD = "end-with-parent"
_LOOK_S = 1


def end_with_parent() -> None:
    """Let this process end when the one that started it does, however that ends.

    A parent that is killed tells nobody, and an engine without one would wait for requests, with
    all its memory, for ever, as a worker for other workers. Nothing happens in a process that
    ``multiprocessing`` did not start, nor in one that does so already.
    """
    parent = multiprocessing.parent_process()
    if parent is None or any(one.name == _THREAD for one in threading.enumerate()):
        return
    threading.Thread(target=_end_after, args=(parent,), name=_THREAD, daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    """Wait for a process, then end this one: in order, or at last in any case."""
    # A sibling that was forked later holds the other end of the sentinel, too.
    while os.getppid() == parent.pid and not wait([parent.sentinel], _LOOK_S):
        pass
    logger.error("The process that started this one is gone: ending too.")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def check_main_is_guarded() -> None:
    """Check that this process is not one that an engine has started, and still imports its script.

    Raises:
        SystemExit: it would start an engine, as the script does; says how to keep it from that.
    """
    # As `multiprocessing.process` asks, whose error is two tracebacks long.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(
            "The engine runs in a process of its own, which imports your script: put what the "
            'script does under `if __name__ == "__main__":`, or each process would start an engine.'
        )


def exit_if_engine_died(engine: EngineClient | None) -> None:
    """End a server with a status that supervisors take for a failure, if its engine is dead.

    Args:
        engine: of the server, which has stopped serving; None if it has none.

    Raises:
        SystemExit: the engine is dead.
    """
    if engine is not None and engine.errored:
        raise SystemExit("The engine's process has ended: the server ends with status 1.")
