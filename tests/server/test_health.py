"""A server answers /health while it checks what takes long, with all of its code but an engine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from tests.engines import MODEL
from tests.server.conftest import free_port
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.hf_compat.frontend import frontend_for
from vllm.tasks import GENERATION_TASKS
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.utils.argparse_utils import FlexibleArgumentParser

LIMITS = ["--max-token-sequences", "1000000", "--max-listed-tokens", "10000000"]
LIMITS += ["--max-stop-strings", "100000", "--max-stop-string-length", "1000000"]
LIMITS += ["--max-body-parts", "1000000"]
NOT_AN_ANSWER = {"encoder_repetition_penalty": -1.0}
"""What Transformers refuses after it has looked at long lists."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server whose limits are high, with the edge of an engine and none behind."""
    flags = ["--model", str(MODEL), "--hf-compat", *LIMITS]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    config = EngineArgs(
        model=str(MODEL), dtype="float32", hf_compat=True, max_model_len=1024
    ).create_engine_config()

    async def check_health() -> None:
        return None

    app = build_app(args, GENERATION_TASKS)
    app.state.args = args
    app.state.engine_client = SimpleNamespace(
        check_health=check_health,
        errored=False,
        model_config=config.model_config,
        input_processor=SimpleNamespace(
            hf_compat=frontend_for(config),
            tokenizer=cached_tokenizer_from_config(config.model_config),
        ),
    )
    app.state.openai_serving_completion = SimpleNamespace(default_sampling_params={})
    app.state.vllm_config = config
    init_exception_handler(app)
    port = free_port()
    # The app's own start and end are the engine's.
    settings = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="off")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=asyncio.run, args=(server.serve(),))
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def refusal(address: str, fields: dict[str, Any]) -> str:
    """Send a body that is refused after its check, and return why."""
    body = {"model": "tiny", "prompt": "x", "max_new_tokens": 3, **fields}
    request = urllib.request.Request(
        f"{address}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=300)
    assert error.value.code == 400
    return str(json.loads(error.value.read())["error"]["message"])


LONG: dict[str, Callable[[], dict[str, Any]]] = {
    "sequence_bias": lambda: {
        "sequence_bias": [[[1 + i // 4000, i % 4000], 1.0] for i in range(200_000)]
    },
    "bad_words_ids": lambda: {
        "bad_words_ids": [[7] * 6000, *([1 + i // 4000, i % 4000] for i in range(200_000))],
    },
    "both, and stop strings": lambda: {
        "sequence_bias": [[[1 + i // 4000, i % 4000], 1.0] for i in range(100_000)],
        "bad_words_ids": [[1 + i // 4000, i % 4000, 5] for i in range(100_000)],
        "stop_strings": ["ab" * 200 + str(i) for i in range(5000)],
    },
}


@pytest.mark.parametrize("name", LONG)
def test_health_while_a_body_is_checked(address: str, name: str) -> None:
    """Several answers come while the check, which took the event loop before, goes on."""
    fields = LONG[name]() | NOT_AN_ANSWER
    said: list[str] = []
    checking = threading.Thread(target=lambda: said.append(refusal(address, fields)))
    checking.start()
    number = 0
    while checking.is_alive():
        with urllib.request.urlopen(f"{address}/health", timeout=300) as answer:
            assert answer.status == 200
        number += checking.is_alive()
        time.sleep(0.01)
    checking.join()
    assert "`penalty` has to be a strictly positive float" in said[0]
    assert number >= 5
