"""Many short requests of which some are given up: none of them is left behind."""

from __future__ import annotations

import json
import random
import socket
from typing import Any
from urllib.parse import urlsplit

from tests.server.witness import Canary, failures_of, post
from tests.sizes import size

NUM_REQUESTS = size(400, 20_000)

KINDS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "num_return_sequences": 3},
    {"num_beams": 4},
    {"guidance_scale": 1.5},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"bad_words_ids": [[5, 6], [7]], "encoder_no_repeat_ngram_size": 3},
    {"stop_strings": ["self", "\n\n"]},
]


def request_of(seed: int) -> tuple[bool, bytes]:
    """Return whether a request is given up, and its body."""
    rng = random.Random(seed)
    fields = dict(rng.choice(KINDS))
    if "num_beams" not in fields:
        fields["stream"] = rng.random() < 0.5
    text = "def f(" + "x, " * rng.randrange(100)
    is_given_up = rng.random() < 0.3
    length = 400 if is_given_up else rng.randrange(1, 9)
    return is_given_up, json.dumps(
        {"model": "tiny", "prompt": text, "max_new_tokens": length, **fields}
    ).encode()


def give_up(address: str, data: bytes, rng: random.Random) -> None:
    """Send a request, and close the connection while it is answered, or read."""
    place = urlsplit(address)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(place.port or 0)), timeout=60) as connection:
        connection.sendall(head.encode() + data[: rng.choice([len(data), len(data) // 2])])
        connection.settimeout(rng.choice([0.001, 0.05, 0.2]))
        try:
            connection.recv(200)
        except TimeoutError:
            return


def failure(address: str, seed: int) -> str | None:
    """Send the request of a seed; return what is wrong with its answer."""
    is_given_up, data = request_of(seed)
    if is_given_up:
        give_up(address, data, random.Random(seed))
        return None
    status, answer = post(address, "/v1/completions", data)
    return None if status == 200 and b'"error"' not in answer else f"{seed}: {status} {answer!r}"


def test_short_requests_and_aborts(server: str, canary: Canary) -> None:
    failures = failures_of(lambda seed: failure(server, seed), range(NUM_REQUESTS), server, canary)
    assert not failures, "\n".join(failures[:20])
