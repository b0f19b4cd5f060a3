"""What a server owes to everybody else while some do what they may, and when they are gone."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar
from urllib.parse import urlsplit

import psutil

from tests.sizes import IS_LONG, size

T = TypeVar("T")

END_LIMIT_S = 60
NUM_CLIENTS = size(16, 4)
"""At once; few where times are looked at, for a full server is slower for everybody."""
MOST_GROWTH = 64 << 20
"""Bytes, after the first half: it touches the pages of the KV cache, and fills allocators."""


def post(address: str, path: str, data: bytes) -> tuple[int, bytes]:
    """Return status and answer; nothing of the body is interpreted on this side."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Canary:
    """A request whose answer is known, asked again and again while others do what they may.

    Attributes:
        seconds: that each answer took.
    """

    def __init__(self, address: str, expected: list[int], text: str) -> None:
        self._address = address
        self._expected = expected
        self._request = json.dumps(
            {"model": "tiny", "prompt": text, "max_tokens": 32, "return_token_ids": True}
        ).encode()
        self.is_over = Event()
        self.seconds: list[float] = []

    def ask(self) -> None:
        begin = time.monotonic()
        status, answer = post(self._address, "/v1/completions", self._request)
        self.seconds.append(time.monotonic() - begin)
        assert status == 200
        assert json.loads(answer)["choices"][0]["token_ids"] == self._expected

    def sing(self) -> None:
        """Ask until it is over, and once at least."""
        self.ask()
        while not self.is_over.is_set():
            self.ask()


def failures_of(
    send: Callable[[T], str | None], requests: Sequence[T], address: str, canary: Canary
) -> list[str]:
    """Return what is wrong with the answers to many requests, sent by several clients.

    Nobody is to be disturbed by them, see `undisturbed`; the first half of them comes before.
    """
    first = len(requests) // 2
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        found = [*pool.map(send, requests[:first])]
        with undisturbed(address, canary):
            found += pool.map(send, requests[first:])
    return [text for text in found if text]


@contextmanager
def undisturbed(address: str, canary: Canary) -> Iterator[None]:
    """Whatever the block sends, the canary's answer comes and stays the same, and nothing is left.

    In the long run answers come in less than ten times the idle server's time, but for one in a
    hundred, and the server's processes grow by no more than `MOST_GROWTH`.
    """
    for _ in range(10):
        canary.ask()
    idle = sorted(canary.seconds)[len(canary.seconds) // 2]
    canary.seconds.clear()
    before = memory_of(address)
    with ThreadPoolExecutor(1) as pool:
        singing = pool.submit(canary.sing)
        try:
            yield
        finally:
            canary.is_over.set()
        singing.result()
    wait_until_idle(address)
    canary.ask()
    slow = sorted(canary.seconds)[len(canary.seconds) * 99 // 100]
    growth = memory_of(address) - before
    print(f"canary: {idle:.3f} s idle, {slow:.3f} s at most but for 1 %; {growth >> 20} MiB more")
    if IS_LONG:
        assert slow < 10 * idle
        assert growth < MOST_GROWTH


def memory_of(address: str) -> int:
    """Return the bytes that a server of this process holds, with its engine and workers."""
    port = str(urlsplit(address).port)
    children = psutil.Process().children()
    alive = [one for one in children if one.status() != psutil.STATUS_ZOMBIE]
    servers = [one for one in alive if port in one.cmdline()]
    family = [relative for one in servers for relative in (one, *one.children(recursive=True))]
    assert family
    return sum(one.memory_info().rss for one in family)


def wait_until_idle(address: str) -> None:
    """Return when the engine has no request and no block of the KV cache is held."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    deadline = time.monotonic() + END_LIMIT_S
    while True:
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        values = [float(v) for name in names for v in re.findall(rf"vllm:{name}{{.*}} (.*)", text)]
        assert len(values) == len(names)
        if not any(values):
            return
        assert time.monotonic() < deadline, dict(zip(names, values, strict=True))
        time.sleep(0.2)
