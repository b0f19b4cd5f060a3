"""Bodies of ``/abort_requests`` and of weights: taken, or a bad request, with flags and without."""

from __future__ import annotations

from types import SimpleNamespace
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


TRANSFER = ("/init_weight_transfer_engine", "/update_weights", "/start_weight_update")
MEETING = {"host": "::1", "port": 5, "world_size": 3, "timeout_s": 1, "session": "a"}
UPDATE = {"names": ["w"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]], "session": "a"}


class Engine:
    """Keeps what it is told to abort, and which weights it is told of."""

    def __init__(self, backend: str | None) -> None:
        self.aborted: list[Any] = []
        self.told: list[Any] = []
        self.vllm_config = SimpleNamespace(
            weight_transfer_config=backend and SimpleNamespace(backend=backend),
            parallel_config=SimpleNamespace(world_size_across_dp=2),
        )

    async def abort(self, ids: Any, internal: bool = False) -> None:
        self.aborted.append(ids)

    async def init_weight_transfer_engine(self, request: Any) -> None:
        self.told.append(request.init_info)

    async def update_weights(self, request: Any) -> None:
        self.told.append(request.update_info)


@pytest.fixture(scope="module", params=[(), ("--hf-compat",)], ids=["no flag", "hf_compat"])
def app(request: pytest.FixtureRequest) -> FastAPI:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        flags = ["--model", str(MODEL), "--enable-scale-out", *request.param]
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
        app = build_app(args, GENERATION_TASKS)
    app.state.engine_client = Engine("gloo")
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


@pytest.mark.parametrize("path", TRANSFER)
def test_a_server_that_takes_no_weights(app: FastAPI, browser: TestClient, path: str) -> None:
    before = app.state.engine_client
    app.state.engine_client = Engine(None)
    response = browser.post(path, json={"init_info": MEETING, "update_info": UPDATE})
    app.state.engine_client = before
    assert response.status_code == 400, response.text
    assert "start it with --weight-transfer-config" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/init_weight_transfer_engine", {"init_info": MEETING}),
        ("/update_weights", {"update_info": UPDATE}),
        ("/update_weights", {"update_info": [UPDATE, UPDATE]}),
    ],
)
def test_weights_reach_the_engine(
    app: FastAPI, browser: TestClient, path: str, body: dict[str, Any]
) -> None:
    app.state.engine_client.told.clear()
    response = browser.post(path, json=body)
    assert response.status_code == 200, response.text
    assert app.state.engine_client.told == list(body.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"port": 0}, "port=0 is none of TCP"),
        ({"port": True}, "port=True must be of type int"),
        ({"port": 1 << 40}, "port=1099511627776 is none of TCP"),
        ({"host": None}, "host=None must be of type str"),
        ({"world_size": 2}, "world_size=2 must be 3: the trainer, and each of the 2 worker(s)"),
        ({"world_size": -3}, "world_size=-3 counts the trainer and every worker"),
        ({"timeout_s": 0}, "timeout_s=0 must be more than 0 and at most 604800"),
        ({"timeout_s": 1e300}, "timeout_s=1e+300 must be more than 0"),
        ({"hots": "a"}, "init_info has no field 'hots': its fields are host, port,"),
    ],
)
def test_meetings_that_cannot_be(
    app: FastAPI, browser: TestClient, changes: dict[str, Any], reason: str
) -> None:
    assert reason in refused(app, browser, TRANSFER[0], {"init_info": MEETING | changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"names": None}, "names must be a list, and is None."),
        ({"names": [5]}, "names and session must be text, which 5 is not."),
        ({"session": 5}, "names and session must be text, which 5 is not."),
        ({"names": []}, "0 names, 1 dtypes and 1 shapes"),
        ({"dtype_names": ["nn"]}, "'nn' is no dtype of PyTorch"),
        ({"dtype_names": [[]]}, "[] is no dtype of PyTorch"),
        ({"shapes": [[-1]]}, "w has no shape [-1]"),
        ({"shapes": ["ab"]}, "w has no shape 'ab'"),
        ({"shapes": [[2.0]]}, "w has no shape [2.0]"),
        ({"shapes": [[True]]}, "w has no shape [True]"),
        ({"shapes": [[1 << 62, 1 << 62]]}, "w has no shape [4611686018427387904,"),
        ({"shape": []}, "update_info has no field 'shape'"),
    ],
)
def test_updates_that_cannot_be(
    app: FastAPI, browser: TestClient, changes: dict[str, Any], reason: str
) -> None:
    update = UPDATE | changes
    for info in (update, [UPDATE, update]):
        assert reason in refused(app, browser, "/update_weights", {"update_info": info})


def test_there_is_an_update_for_each_worker(app: FastAPI, browser: TestClient) -> None:
    reason = refused(app, browser, "/update_weights", {"update_info": [UPDATE]})
    assert "update_info has 1 objects and the engine 2 workers" in reason


@pytest.mark.parametrize("path", TRANSFER[:2])
@pytest.mark.parametrize("info", [{}, [], [5], 5, "a", None, {"session": "a"}], ids=str)
def test_fields_that_are_missing(app: FastAPI, browser: TestClient, path: str, info: Any) -> None:
    field = "init_info" if path == TRANSFER[0] else "update_info"
    reason = refused(app, browser, path, {field: info})
    assert field in reason
    assert ("needs" in reason) == isinstance(info, dict)


@pytest.mark.parametrize("path", TRANSFER[:2])
@pytest.mark.parametrize("body", [b"", b"5", b"[", b"\xff", b"{}", b"[" * 100_000], ids=str)
def test_bodies_that_are_no_weights(
    app: FastAPI, browser: TestClient, path: str, body: bytes
) -> None:
    app.state.engine_client.told.clear()
    response = browser.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert not app.state.engine_client.told


def refused(app: FastAPI, browser: TestClient, path: str, body: dict[str, Any]) -> str:
    """Return why a body is refused, of which the engine hears nothing."""
    app.state.engine_client.told.clear()
    response = browser.post(path, json=body)
    assert response.status_code == 400, response.text
    assert not app.state.engine_client.told
    return str(response.json()["error"]["message"])
