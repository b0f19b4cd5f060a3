"""The server without its sockets: requests to the routes of ``vllm serve``, in this process.

What a row may hold, what is refused and what comes back are therefore the server's.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import resource_tracker
from threading import Thread
from typing import TYPE_CHECKING

import httpx

from vllm.bulk.tasks import Answer, Task, answer_to
from vllm.fork.sentence_command import UserError

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient


class EngineEndedError(UserError):
    """The engine's process is gone: no row is to blame."""


class InProcessServer:
    """A server that is asked by calls.

    Args:
        client: asks its routes.
        engine: answers.
    """

    def __init__(self, client: httpx.AsyncClient, engine: EngineClient) -> None:
        self._client = client
        self._engine = engine

    @property
    def concurrency(self) -> int:
        """How many requests keep the engine full, and the next ones ready."""
        return 2 * self._engine.vllm_config.scheduler_config.max_num_seqs

    async def ask(self, task: Task) -> Answer:
        """Return the answer to a request, or its refusal.

        Raises:
            EngineEndedError: the engine ended.
        """
        response = await self._client.post(
            task.url,
            content=task.body,
            headers={"Content-Type": "application/json", "X-Request-Id": f"bulk-{task.index}"},
        )
        if self._engine.errored:
            raise EngineEndedError(
                "The engine has ended, see the log above: start the same command again to go on."
            )
        is_json = "json" in response.headers.get("content-type", "")
        return answer_to(task, response.status_code, response.json() if is_json else response.text)


@asynccontextmanager
async def serving(args: Namespace) -> AsyncIterator[InProcessServer]:
    """Start the engine and the routes of a command line of ``vllm serve``."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.app import build_app
    from vllm.usage.usage_lib import UsageContext

    with acknowledged("Stopping once the engine has started."), interrupts_held_back():
        engines = build_async_engine_client(args, usage_context=UsageContext.OPENAI_BATCH_RUNNER)
        engine = await engines.__aenter__()
    try:
        tasks = await engine.get_supported_tasks()
        app = build_app(args, tasks, engine.model_config)
        await init_app_state(engine, app.state, args, tasks)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://bulk", timeout=None
        ) as client:
            yield InProcessServer(client, engine)
    finally:
        await engines.__aexit__(None, None, None)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Hold Ctrl-C back from this process until the block's end, and from those it starts for ever.

    A terminal sends it to all of them, and an engine that ends at once cannot answer what it has.
    """
    resource_tracker.ensure_running()  # its first start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def acknowledged(sentence: str) -> Iterator[None]:
    """Say so at once when Ctrl-C is pressed, however long the main thread takes to act on it.

    It is heard by the thread that begins here, which `interrupts_held_back` does not silence.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)

    def say() -> None:
        if os.read(read, 1):  # nothing once the block has ended
            print(sentence, file=sys.stderr)

    thread = Thread(target=say, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(write)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)
        thread.join()
        os.close(read)
