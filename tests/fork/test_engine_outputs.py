"""Answers that are sent by whoever has them, through real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest
import zmq

from vllm.fork.processes.engine_outputs import DirectOutputs, sending_directly
from vllm.fork.processes.one_process_executor import OneProcessExecutor
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, UtilityOutput
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.serial_utils import UtilityResult

DEAD = EngineCoreProc.ENGINE_CORE_DEAD


class Core:
    """What the thread's function looks at of an engine."""

    ENGINE_CORE_DEAD = DEAD

    def __init__(self, executor: type) -> None:
        self.model_executor: Any = object.__new__(executor)
        self.output_queue: Any = Queue()
        self.by_thread: list[list[str]] = []

    def process_output_sockets(self, paths: list[str], coordinator: str | None, index: int) -> None:
        self.by_thread.append(paths)


sending_directly(Core)


def outputs_of(request_id: str) -> EngineCoreOutputs:
    return EngineCoreOutputs(outputs=[EngineCoreOutput(request_id, [1, 2])])


class Client:
    """Receives what an engine sends."""

    def __init__(self, path: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.rcvtimeo = 10_000
        self._socket.bind(path)

    def next(self) -> tuple[int, str] | bytes:
        """Return an engine's index and the request that it answers; or the last message."""
        message = self._socket.recv_multipart()[0]
        if message == DEAD:
            return DEAD
        found = msgspec.msgpack.decode(message, type=EngineCoreOutputs)
        return found.engine_index, found.outputs[0].request_id

    def outputs(self) -> EngineCoreOutputs:
        """Return the next message, which is not the last."""
        return msgspec.msgpack.decode(self._socket.recv_multipart()[0], type=EngineCoreOutputs)

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [f"ipc://{tmp_path}/{name}" for name in "ab"]


@pytest.fixture
def clients(paths: list[str]) -> Iterator[list[Client]]:
    made = [Client(path) for path in paths]
    yield made
    for one in made:
        one.close()


def test_answers_go_to_their_clients_until_the_last(
    paths: list[str], clients: list[Client]
) -> None:
    core = Core(OneProcessExecutor)
    core.output_queue.put_nowait((1, outputs_of("before")))
    arguments = (paths, None, 7)
    thread = threading.Thread(target=core.process_output_sockets, args=arguments, daemon=True)
    thread.start()
    assert clients[1].next() == (7, "before")
    assert isinstance(core.output_queue, DirectOutputs)
    for client, request in ((0, "a"), (1, "b"), (0, "c")):
        core.output_queue.put_nowait((client, outputs_of(request)))
    assert [clients[0].next(), clients[0].next()] == [(7, "a"), (7, "c")]
    assert clients[1].next() == (7, "b")
    core.output_queue.put_nowait(DEAD)
    thread.join(10)
    assert not thread.is_alive()
    assert [one.next() for one in clients] == [DEAD, DEAD]
    core.output_queue.put_nowait((0, outputs_of("too late")))  # as what is put behind the last one
    assert core.by_thread == []


def test_several_threads_answer(paths: list[str], clients: list[Client]) -> None:
    core = Core(OneProcessExecutor)
    arguments = (paths, None, 0)
    threading.Thread(target=core.process_output_sockets, args=arguments, daemon=True).start()
    core.output_queue.put_nowait((1, outputs_of("first")))
    assert clients[1].next() == (0, "first")

    def answer(number: int) -> None:
        for i in range(200):
            core.output_queue.put_nowait((0, outputs_of(f"{number}-{i}")))

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    found = [clients[0].next()[1] for _ in range(800)]
    for number in range(4):
        own = [one for one in found if str(one).startswith(f"{number}-")]
        assert own == [f"{number}-{i}" for i in range(200)]
    core.output_queue.put_nowait(DEAD)
    assert clients[0].next() == DEAD


def exchanged(core: Core, paths: list[str]) -> threading.Thread:
    """Start the thread, and wait until answers are sent directly."""
    before = core.output_queue
    thread = threading.Thread(
        target=core.process_output_sockets, args=(paths, None, 0), daemon=True
    )
    thread.start()
    while core.output_queue is before:
        time.sleep(0.01)
    return thread


def test_what_was_put_into_the_queue_that_is_exchanged(
    paths: list[str], clients: list[Client]
) -> None:
    """By who had looked it up just before: it comes first, or in a second at most."""
    core = Core(OneProcessExecutor)
    before = core.output_queue
    thread = exchanged(core, paths)
    before.put_nowait((0, outputs_of("a")))
    core.output_queue.put_nowait((0, outputs_of("b")))
    before.put_nowait((0, outputs_of("c")))
    assert [clients[0].next() for _ in range(3)] == [(0, "a"), (0, "b"), (0, "c")]
    before.put_nowait(DEAD)
    assert clients[0].next() == DEAD
    thread.join(10)
    assert not thread.is_alive()


def test_a_reply_that_cannot_be_sent_is_said_to_be_one(
    paths: list[str], clients: list[Client]
) -> None:
    """The engine goes on, and the caller gets an error instead of waiting."""
    core = Core(OneProcessExecutor)
    exchanged(core, paths)
    reply = UtilityOutput(5, result=UtilityResult(1 << 70))
    core.output_queue.put_nowait((0, EngineCoreOutputs(utility_output=reply)))
    found = clients[0].outputs().utility_output
    assert found is not None
    assert found.call_id == 5
    assert str(found.failure_message).startswith("The reply cannot be sent (")
    core.output_queue.put_nowait((0, outputs_of("next")))
    assert clients[0].next() == (0, "next")
    wrong: Any = [1 << 70]
    with pytest.raises(OverflowError):
        core.output_queue.put_nowait((0, EngineCoreOutputs(outputs=wrong)))
    core.output_queue.put_nowait(DEAD)
    assert clients[0].next() == DEAD


@pytest.mark.parametrize(
    ("executor", "coordinator"), [(UniProcExecutor, None), (OneProcessExecutor, "tcp://")]
)
def test_elsewhere_the_thread_sends(executor: type, coordinator: str | None) -> None:
    """Where the model is in another process, or a coordinator has to know of answers."""
    core = Core(executor)
    queue = core.output_queue
    core.process_output_sockets(["path"], coordinator, 0)
    assert (core.by_thread, core.output_queue) == ([["path"]], queue)
