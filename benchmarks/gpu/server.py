"""Tokens per second of the OpenAI server, from 1, 8 and 64 clients at once.

    python -m benchmarks.gpu.server plain|eager|hf_compat|exact|deterministic FOLDER

The prompts, answers and modes of `benchmarks.gpu.engines`. Printed are medians, as JSON, again
after each of these.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.engines import BATCHES, CACHE_BYTES, MODES, MOST_TOKENS, rates_of

LONGEST_START = 200.0
"""Seconds until the server must answer."""


def flags_of(mode: str) -> list[str]:
    """Return a way's arguments as flags."""
    flags = []
    for name, value in MODES[mode].items():
        flags.append(f"--{name.replace('_', '-')}")
        if value is not True:
            flags.append(value if isinstance(value, str) else json.dumps(value))
    return flags


@contextlib.contextmanager
def server(folder: str, mode: str) -> Iterator[int]:
    """Start a server, and give its port once it answers.

    Raises:
        RuntimeError: it ended, or took too long.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", folder]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    command += ["--dtype", "bfloat16", "--max-model-len", str(MOST_TOKENS)]
    command += ["--max-num-seqs", str(max(BATCHES)), "--no-enable-prefix-caching"]
    command += ["--kv-cache-memory-bytes", str(CACHE_BYTES), *flags_of(mode)]
    process = subprocess.Popen(command, stdout=sys.stderr)  # which the measurement's log has
    try:
        wait_until_ready(process, port)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server is healthy."""
    end = time.monotonic() + LONGEST_START
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}.")
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"the server did not answer for {LONGEST_START:.0f} seconds.")


def complete(port: int, prompt: list[int], tokens: int) -> int:
    """Ask for a completion, and return how many tokens it has."""
    body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(
        "POST", "/v1/completions", json.dumps({**body, "ignore_eos": True}),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    if "usage" not in answer:
        raise RuntimeError(f"the server refused: {answer}")
    return int(answer["usage"]["completion_tokens"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    start = time.perf_counter()
    with (
        server(str(options.folder), options.mode) as port,
        ThreadPoolExecutor(max(BATCHES)) as clients,
    ):
        seconds = round(time.perf_counter() - start, 1)

        def answer(asked: list[list[int]], tokens: int) -> int:
            return sum(clients.map(lambda prompt: complete(port, prompt, tokens), asked))

        for rates in rates_of(answer, options.tokens, options.rounds):
            print(json.dumps({**rates, "start": seconds}), flush=True)


if __name__ == "__main__":
    main()
