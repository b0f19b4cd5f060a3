"""Answers of an engine that is one process (`one_process`): whoever has them sends them.

Why: vLLM hands them to a thread. Where that thread shares its interpreter with the model, it takes
  it away while the next step is prepared, and waking one after the other takes longer than to send.
Upstream status: Not reported yet: a matter of defaults.
Exit condition: Upstream sends answers in the thread that has them, where it has one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from queue import Queue
from typing import TYPE_CHECKING, Any

import zmq

from vllm.fork.processes.one_process_executor import OneProcessExecutor
from vllm.utils.network_utils import make_zmq_socket
from vllm.v1.engine import EngineCoreOutputs, UtilityOutput
from vllm.v1.serial_utils import MsgpackEncoder

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc

_LINGER_MS = 4000
"""How long messages may still leave when the process ends, as vLLM's."""

_SECONDS_BETWEEN_LOOKS = 1.0
"""After so long an answer is sent that was put into the queue when that was exchanged."""


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
            outputs = DirectOutputs(sockets, engine_index, core.output_queue, core.ENGINE_CORE_DEAD)
            core.output_queue = outputs
            while not outputs.has_ended.wait(_SECONDS_BETWEEN_LOOKS):
                outputs.send_waiting()

    core_class.process_output_sockets = process
    return core_class


class DirectOutputs:
    """Takes the place of the queue that ``EngineCoreProc`` puts its answers into, and sends them.

    Args:
        sockets: of each client. They never block: their queues have no limit.
        engine_index: of the engine, which clients tell engines by.
        before: the queue; what is still in it is sent first.
        dead: the last message, which goes to all clients, and nothing after it.

    Attributes:
        has_ended: the last message was sent.
    """

    def __init__(
        self, sockets: list[zmq.Socket[bytes]], engine_index: int, before: Queue[Any], dead: bytes
    ) -> None:
        self.has_ended = threading.Event()
        self._sockets = sockets
        self._engine_index = engine_index
        self._before = before
        self._dead = dead
        self._encoder = MsgpackEncoder()
        self._lock = threading.Lock()  # requests that cannot be read are answered by a thread

    def put_nowait(self, item: Any) -> None:
        """Send an answer.

        Args:
            item: the client's number and its ``EngineCoreOutputs``; or the last message.
        """
        with self._lock:
            self._send_waiting()
            self._send(item)

    def send_waiting(self) -> None:
        """Send what is still in the queue."""
        with self._lock:
            self._send_waiting()

    def _send_waiting(self) -> None:
        while not self._before.empty():
            self._send(self._before.get_nowait())

    def _send(self, item: Any) -> None:
        if self.has_ended.is_set():
            return
        if item == self._dead:
            for socket in self._sockets:
                socket.send(item)
            self.has_ended.set()
            return
        client, outputs = item
        outputs.engine_index = self._engine_index
        self._sockets[client].send_multipart(self._encoded(outputs), copy=False)

    def _encoded(self, outputs: EngineCoreOutputs) -> Sequence[Any]:
        try:
            return self._encoder.encode(outputs)
        except Exception as error:  # of any type that somebody's function may return
            if outputs.utility_output is None:
                raise
            reason = f"The reply cannot be sent ({type(error).__name__}: {error})."
            failed = UtilityOutput(outputs.utility_output.call_id, failure_message=reason)
            return self._encoder.encode(
                EngineCoreOutputs(self._engine_index, utility_output=failed)
            )
