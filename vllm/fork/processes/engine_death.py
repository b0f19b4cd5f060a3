"""The death of an engine's process reaches those of ``LLM`` that wait for its answers.

Why: The engine's process dies while a call of ``LLM`` waits: the other processes that wait are not
  told, and wait for ever.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/engine-death-while-waiting.md).
Exit condition: Upstream tells every process of ``LLM`` that its engine has died.
"""

from __future__ import annotations

import weakref
from typing import Any

from vllm.v1.engine.core_client import SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError


def end_waiting_with_engine(client: Any) -> None:
    """Let a client raise ``EngineDeadError`` from what waits for an engine that has died.

    The thread that watches the engine's process shuts the client down (``MPClient``,
    ``start_engine_core_monitor``), with the thread that would put answers into the queue; whoever
    waits at the queue would wait for ever.

    Args:
        client: of the engine; one that shares its process is left as it is.
    """
    if not isinstance(client, SyncMPClient) or "shutdown" in vars(client):
        return
    reference = weakref.ref(client)  # or the client would refer to itself, and be left at the end

    def shutdown(*args: Any, **kwargs: Any) -> None:
        if (own := reference()) is None:
            return
        type(own).shutdown(own, *args, **kwargs)
        if own.resources.engine_dead:
            own.outputs_queue.put_nowait(EngineDeadError())
            for waiting in list(own.utility_results.values()):
                if not waiting.done():
                    waiting.set_exception(EngineDeadError())

    client.shutdown = shutdown
