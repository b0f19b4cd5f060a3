"""Answers of an engine that is one process (`one_process`): whoever has them sends them.

vLLM hands them to a thread. Where that thread shares its interpreter with the model, it takes it
away while the next step is prepared, and waking one after the other takes longer than to send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from queue import Queue
from typing import TYPE_CHECKING, Any

import zmq

from vllm.fork.one_process_executor import OneProcessExecutor
from vllm.utils.network_utils import make_zmq_socket
from vllm.v1.serial_utils import MsgpackEncoder

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc

_LINGER_MS = 4000
"""How long messages may still leave when the process ends, as vLLM's."""


def sending_directly(core_class: type[EngineCoreProc]) -> type[EngineCoreProc]:
    """Decorate ``EngineCoreProc``: its thread for answers makes the sockets, and `DirectOutputs`
    sends through them, where this process has the model on CPUs.
    """
    by_thread: Callable[..., None] = core_class.process_output_sockets

    @wraps(by_thread)
    def process(
        core: Any, output_paths: list[str], coord_output_path: str | None, engine_index: int
    ) -> None:
        is_one_process = isinstance(core.model_executor, OneProcessExecutor)
        if coord_output_path is not None or not is_one_process:
            by_thread(core, output_paths, coord_output_path, engine_index)
            return
        with ExitStack() as stack, zmq.Context() as context:
            sockets = [
                stack.enter_context(make_zmq_socket(context, path, zmq.PUSH, linger=_LINGER_MS))
                for path in output_paths
            ]
            given = core.output_queue
            outputs = DirectOutputs(sockets, engine_index, given, core.ENGINE_CORE_DEAD)
            core.output_queue = outputs
            while (item := given.get()) != core.ENGINE_CORE_DEAD:
                outputs.put_nowait(item)  # from before
            outputs.close()

    core_class.process_output_sockets = process
    return core_class


class DirectOutputs:
    """Takes the place of the queue that ``EngineCoreProc`` puts its answers into, and sends them.

    Args:
        sockets: of each client. They never block: their queues have no limit.
        engine_index: of the engine, which clients tell engines by.
        thread_queue: what the thread waits at that will call `close`.
        dead: the last message.
    """

    def __init__(
        self,
        sockets: list[zmq.Socket[bytes]],
        engine_index: int,
        thread_queue: Queue[Any],
        dead: bytes,
    ) -> None:
        self._sockets = sockets
        self._engine_index = engine_index
        self._thread_queue = thread_queue
        self._dead = dead
        self._encoder = MsgpackEncoder()
        self._lock = threading.Lock()  # requests that cannot be read are answered by a thread

    def put_nowait(self, item: Any) -> None:
        """Send an answer.

        Args:
            item: the client's number and its ``EngineCoreOutputs``; or the last message.
        """
        if item == self._dead:
            self._thread_queue.put_nowait(item)
            return
        client, outputs = item
        outputs.engine_index = self._engine_index
        with self._lock:
            if self._sockets:
                self._sockets[client].send_multipart(self._encoder.encode(outputs), copy=False)

    def close(self) -> None:
        """Send the last message, and nothing from here on."""
        with self._lock:
            for socket in self._sockets:
                socket.send(self._dead)
            self._sockets = []
