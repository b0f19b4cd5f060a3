"""What ``/abort_requests`` is sent: taken, or a bad request, with flags and without."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.engines import MODEL
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.tasks import GENERATION_TASKS
from vllm.utils.argparse_utils import FlexibleArgumentParser

PATHS = ("/inference/v1/abort_requests", "/abort_requests")


class Engine:
    """Keeps what it is told to abort."""

    def __init__(self) -> None:
        self.aborted: list[Any] = []

    async def abort(self, ids: Any, internal: bool = False) -> None:
        self.aborted.append(ids)


@pytest.fixture(scope="module", params=[(), ("--hf-compat",)], ids=["no flag", "hf_compat"])
def app(request: pytest.FixtureRequest) -> FastAPI:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        flags = ["--model", str(MODEL), "--enable-scale-out", *request.param]
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
        app = build_app(args, GENERATION_TASKS)
    app.state.engine_client = Engine()
    return app


@pytest.fixture
def browser(app: FastAPI) -> TestClient:
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body", [b"5", b"null", b'"ab"', b"[1]", b'{"request_ids": 5}', b'{"request_ids": [5]}',
             b'{"request_ids": {"a": 1}}', b"\xff", b"", b"[" * 100_000],
    ids=lambda body: str(body[:30]),
)  # fmt: skip
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_other_bodies_are_bad_requests(
    browser: TestClient, path: str, body: bytes, kind: str
) -> None:
    response = browser.post(path, content=body, headers={"Content-Type": kind})
    assert response.status_code == 400, response.text
    assert "body" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_ids_reach_the_engine(app: FastAPI, browser: TestClient, path: str) -> None:
    app.state.engine_client.aborted.clear()
    for ids in (["a", "b"], "c"):
        assert browser.post(path, json={"request_ids": ids}).status_code == 200
    assert app.state.engine_client.aborted == [["a", "b"], "c"]
