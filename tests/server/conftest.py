"""Servers as processes of their own, and the one with ``--hf-compat`` that most tests share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.engines import MODEL, ROOT
from tests.reference import generate, prompt_texts
from tests.server.witness import Canary

START_LIMIT_S = 300
# The bundled model has no chat template: a chat is the text of its messages.
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a canary look at latencies, so they have the machine for themselves."""
    for item in items:
        if "canary" in getattr(item, "fixturenames", ()):
            item.add_marker("alone")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    # Spawned processes import everything anew: the flags must reach them through the config alone.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # A client that computes for five seconds would use a connection just as the server ends it.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
}
"""Of commands that tests start."""


@dataclass
class Server:
    """A server that was started.

    Attributes:
        address: for HTTP, without a slash at the end.
        log: what it prints.
    """

    process: subprocess.Popen[bytes]
    address: str
    log: Path


def start_server(folder: Path, *flags: str, **variables: str) -> Server:
    """Start to serve the bundled model as ``tiny``; the log is in `folder`."""
    return start_command(
        ["vllm", "serve", str(MODEL), "--served-model-name", "tiny", "--host", "127.0.0.1", *flags],
        folder,
        **variables,
    )


def start_command(words: list[str], folder: Path, **variables: str) -> Server:
    """Start ``vllm serve MODEL ...``, small unless it says more, in the repository's folder."""
    port, log = free_port(), folder / "log"
    small = ["--max-model-len", "2048", "--enforce-eager", "--kv-cache-memory-bytes", str(1 << 28)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*words[:3], "--port", str(port), *small, *words[3:]],
            cwd=ROOT,
            env={**ENVIRONMENT, **variables},
            stdout=output,
            stderr=output,
        )
    return Server(process, f"http://127.0.0.1:{port}", log)


@contextmanager
def running_server(folder: Path, *flags: str, **variables: str) -> Iterator[str]:
    """Serve the bundled model, and give the address."""
    server = start_server(folder, *flags, **variables)
    try:
        wait_until_healthy(server)
        yield server.address
    finally:
        server.process.terminate()
        server.process.wait(timeout=60)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with hf_compat."""
    flags = ["--hf-compat", "--dtype", "float32", "--enable-scale-out"]
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, *flags, "--chat-template", CHAT_TEMPLATE) as address:
        yield address


@pytest.fixture(scope="session")
def client(server: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)


@pytest.fixture
def canary(server: str, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Canary:
    """A request to the shared server, with Transformers' answer."""
    text = prompt_texts(1)[0]
    config = GenerationConfig(max_new_tokens=32)
    return Canary(server, generate(hf_model, tokenizer(text)["input_ids"], config), text)


def wait_until_healthy(server: Server) -> None:
    """Return when the server answers, and fail if it does not come to that."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"the server did not come up:\n{server.log.read_text()[-4000:]}")
