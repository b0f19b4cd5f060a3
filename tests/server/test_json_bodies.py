"""Bodies that are no JSON, or cannot be read: one sentence, and upstream's without flags."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.engines import MODEL
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.tasks import GENERATION_TASKS
from vllm.utils.argparse_utils import FlexibleArgumentParser

PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/invocations")
FIRST = b'{"model": "tiny", "prompt": "x", "a": '
UNREADABLE = [
    (FIRST + b"[" * 5000 + b"]" * 5000 + b"}", "more lists and objects in each other than can be"),
    (b'{"a":' * 5000, "more lists and objects in each other than can be"),
    (FIRST + b"9" * 5000 + b"}", "The body has a number of more than 4300 digits: send a smaller"),
    (FIRST + b'"\xff"}', "The body is no text in UTF-8: invalid start byte (byte 39, 0xff); send"),
    (FIRST, "The body is not JSON: Expecting value (line 1, column 39)."),
]


def browser_of(*flags: str) -> TestClient:
    arguments = ["--model", str(MODEL), "--enable-scale-out", *flags]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    return TestClient(build_app(args, GENERATION_TASKS), raise_server_exceptions=False)


@pytest.fixture(scope="module", params=["--deterministic", "--hf-compat"])
def browser(request: pytest.FixtureRequest) -> TestClient:
    return browser_of(request.param)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("body", "reason"), UNREADABLE, ids=lambda value: str(value)[-30:])
def test_one_sentence_says_why(browser: TestClient, path: str, body: bytes, reason: str) -> None:
    response = browser.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert reason in error["message"]
    assert error["code"] == 400


def test_without_a_flag_it_is_upstreams_answer() -> None:
    browser = browser_of()
    for body, _ in UNREADABLE[:4]:
        response = browser.post(
            PATHS[0], content=body, headers={"Content-Type": "application/json"}
        )
        assert response.json() == {"detail": "There was an error parsing the body"}


@pytest.mark.parametrize("path", PATHS)
def test_no_body_is_left_to_the_route(browser: TestClient, path: str) -> None:
    """A route that needs none has to be called without one."""
    response = browser.post(path, content=b"", headers={"Content-Type": "application/json"})
    plain = browser_of().post(path, content=b"", headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()) == (plain.status_code, plain.json())


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/v1/completions", {"prompt": "x", "top_k": 1 << 64}, "top_k"),
        ("/invocations", {"prompt": "x", "top_k": 1 << 70}, "top_k"),
        ("/v1/responses", {"input": "x", "top_k": 1 << 64}, "top_k"),
        (
            "/inference/v1/generate",
            {"token_ids": [5], "sampling_params": {"top_k": 1 << 64}},
            "sampling_params.top_k",
        ),
    ],
)
def test_integers_that_no_message_has(
    browser: TestClient, path: str, fields: dict[str, Any], name: str
) -> None:
    response = browser.post(path, json={"model": "tiny", **fields})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith(f"{name} is a number of more than 64 bits: send a smaller one.")
