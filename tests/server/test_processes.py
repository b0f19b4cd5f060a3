"""A server's processes, ended in each of the ways in which they end."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.conftest import START_LIMIT_S, Server, start_server, wait_until_healthy

LIMIT_S = 30  # for what happens at once


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Server]:
    """A server that has just been started, and that the test ends."""
    server = start_server(tmp_path, "--hf-compat", "--dtype", "float32")
    yield server
    end(server.process)


@pytest.fixture
def server(starting: Server) -> Server:
    """A server that answers, and that the test ends."""
    wait_until_healthy(starting)
    return starting


def end(process: subprocess.Popen[bytes]) -> None:
    """End what a failed test has left."""
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


def engine_of(server: Server) -> psutil.Process:
    """Return the process of the engine, which may have just begun."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if engines := children_named("EngineCore", server):
            return engines[0]
        time.sleep(0.1)
    pytest.fail("the server has no engine")


def children_named(part: str, server: Server) -> list[psutil.Process]:
    """Return the processes with this in their names; some end between two looks at them."""
    named = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if part in child.name():
                named.append(child)
    return named


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads("".join(lines_of(server, **fields)))
    return answer


def lines_of(server: Server, **fields: Any) -> list[str]:
    """Return what a request is answered with, but for empty lines."""
    body = {"model": "tiny", "prompt": "def f(", **fields}
    request = urllib.request.Request(
        f"{server.address}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return [line for line in response.read().decode().splitlines() if line]


def test_a_server_without_its_engine_ends_with_a_failure(server: Server) -> None:
    engine_of(server).kill()
    assert server.process.wait(LIMIT_S) == 1
    assert "The engine's process has ended" in server.log.read_text()


@pytest.mark.long
def test_an_engine_without_its_server_ends(starting: Server) -> None:
    """The process that serves is killed, and so has no occasion to end the others.

    Not even one that has just begun to start.
    """
    engine_of(starting)
    children = psutil.Process(starting.process.pid).children(recursive=True)
    starting.process.kill()
    starting.process.wait()
    _, alive = psutil.wait_procs(children, timeout=START_LIMIT_S)
    assert not alive


@pytest.mark.long
def test_a_server_that_is_terminated_while_it_starts_ends(starting: Server) -> None:
    """It waits for its engine then, and served once that was there."""
    engine_of(starting)
    time.sleep(1)  # until it waits
    children = psutil.Process(starting.process.pid).children(recursive=True)
    starting.process.send_signal(signal.SIGTERM)
    starting.process.wait(START_LIMIT_S)
    _, alive = psutil.wait_procs(children, timeout=LIMIT_S)
    assert not alive
    assert "startup complete" not in starting.log.read_text()


@pytest.mark.long
def test_workers_without_their_engine_end_while_they_start(tmp_path: Path) -> None:
    """They wait for each other then, and look for their engine only once they have a model."""
    server = start_server(tmp_path, "--tensor-parallel-size", "2", "--dtype", "float32")
    try:
        workers = workers_of(server)
        engine_of(server).kill()
        _, alive = psutil.wait_procs(workers, timeout=LIMIT_S)
        assert not alive
        server.process.wait(LIMIT_S)
    finally:
        end(server.process)


def workers_of(server: Server) -> list[psutil.Process]:
    """Return the processes of two workers, as soon as one has begun."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if children_named("Worker", server):
            engine = engine_of(server)
            return [one for one in engine.children() if "tracker" not in " ".join(one.cmdline())]
        time.sleep(0.1)
    pytest.fail("the engine has no worker")


def test_a_server_that_is_terminated_answers_what_it_was_asked(tmp_path: Path) -> None:
    """Within the drain time; it takes no more requests, and its end is no failure."""
    new_tokens = 1500
    server = start_server(tmp_path, "--hf-compat", "--dtype", "float32", "--shutdown-timeout", "60")
    try:
        wait_until_healthy(server)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, server, max_new_tokens=new_tokens, eos_token_id=4095)
            wait_for_tokens(server)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert not answer.done(), "the answer was there too soon to show anything"
            assert "is shutting down" in refusal_of(ask, server, max_tokens=1)
            assert answer.result()["usage"]["completion_tokens"] == new_tokens
        assert server.process.wait(LIMIT_S) == 0
    finally:
        end(server.process)


@pytest.mark.long
def test_a_server_that_is_terminated_says_what_it_cannot_finish(tmp_path: Path) -> None:
    """Its HTTP server waits for every answer; a stream has begun with 200."""
    too_much = {"max_new_tokens": 2000, "eos_token_id": 4095}
    server = start_server(tmp_path, "--hf-compat", "--dtype", "float32", "--shutdown-timeout", "1")
    try:
        wait_until_healthy(server)
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(refusal_of, ask, server, n=4, do_sample=True, **too_much)
            stream = pool.submit(lines_of, server, stream=True, **too_much)
            wait_for_tokens(server)
            server.process.send_signal(signal.SIGTERM)
            assert "could not finish this request in 1 s" in whole.result()
            assert "could not finish this request in 1 s" in stream.result()[-2]
        assert server.process.wait(LIMIT_S) == 0
    finally:
        end(server.process)


def refusal_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the sentence of the 503 that this raises."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        function(*args, **kwargs)
    assert caught.value.code == 503
    message: str = json.load(caught.value)["error"]["message"]
    return message


def wait_for_tokens(server: Server) -> None:
    """Return when the server has begun to answer."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{server.address}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        counts = [line for line in lines if line.startswith("vllm:generation_tokens_total{")]
        if counts and float(counts[0].split()[-1]) > 0:
            return
        time.sleep(0.05)
    pytest.fail("no token came")
