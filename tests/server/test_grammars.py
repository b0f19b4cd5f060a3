"""Grammars that would keep upstream's engine, or its server, from answering for minutes."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.hf_compat.test_grammars import AMBIGUOUS, schema
from tests.server.witness import Canary, post, undisturbed

TOO_LONG = "it takes longer to compile than a grammar may"
HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("completions", {"structured_outputs": {"json": schema(300, 100)}}, TOO_LONG),
    (
        "completions",
        {"structured_outputs": {"choice": [f"choice {i}" for i in range(300_000)]}},
        TOO_LONG,
    ),
    (
        "completions",
        {"structured_outputs": {"grammar": f"root ::= s\n{AMBIGUOUS}"}},
        "longer than a grammar may, since it is ambiguous",
    ),
    (
        "completions",
        {"structured_outputs": {"json": {"properties": {"a": {"$ref": "other.json#/x"}}}}},
        "refers to 'other.json#/x', which nobody fetches",
    ),
    (
        "responses",
        {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "x",
                    "schema": json.loads(schema(300, 102)),
                }
            }
        },
        TOO_LONG,
    ),
]
PROMPTS: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "def"},
    "responses": {"input": "def"},
}


def test_hostile_grammars(server: str, canary: Canary) -> None:
    """Each is refused with its reason; /health answers, and others have their answers meanwhile."""
    is_over, slowest = threading.Event(), [0.0]

    def probe() -> None:
        while not is_over.is_set():
            begin = time.monotonic()
            urllib.request.urlopen(f"{server}/health", timeout=60).close()
            slowest.append(time.monotonic() - begin)
            time.sleep(0.02)

    def ask(path: str, fields: dict[str, Any]) -> tuple[int, bytes]:
        body = {"model": "tiny", **PROMPTS[path], **fields}
        return post(server, f"/v1/{path}", json.dumps(body).encode())

    # The process of the trials is there then, and is not counted as growth.
    assert ask("completions", {"structured_outputs": {"regex": "a"}})[0] == 200
    with undisturbed(server, canary), ThreadPoolExecutor(6) as pool:
        probing = pool.submit(probe)
        refused = [pool.submit(ask, path, fields) for path, fields, _ in HOSTILE]
        results = [one.result() for one in refused]
        is_over.set()
        probing.result()
    for (_, _, reason), (status, answer) in zip(HOSTILE, results, strict=True):
        assert (status, reason in answer.decode()) == (400, True), answer[:500]
    print(f"/health: {max(slowest):.2f} s at most, {len(slowest)} answers")
    assert len(canary.seconds) > 5
    assert len(slowest) > 50
