"""What clients and trainers of a server hear while its weights are those of no model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
import torch
from transformers import AutoModelForCausalLM

from tests.engines import MODEL
from tests.live_weights.test_gloo import Dying, Renamed
from tests.server.conftest import free_port, running_server
from tests.server.requests import post
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory
from vllm.fork.weight_transfer import GlooTrainerInitInfo, RefusedError, WeightSyncClient

pytestmark = pytest.mark.long

FLAGS = ["--deterministic", "--dtype", "bfloat16"]
FLAGS += ["--weight-transfer-config", '{"backend": "gloo"}']


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, *FLAGS, VLLM_SERVER_DEV_MODE="1") as address:
        yield address


def ask(address: str, **fields: Any) -> tuple[int, str]:
    """Return the status, and the text of the answer or the reason of a refusal."""
    body = {"model": "tiny", "prompt": "def f(", "temperature": 0, "max_tokens": 8, **fields}
    status, answer = post(f"{address}/v1/completions", body)
    return status, answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]


def send(address: str, kind: type[ModuleSource] = ModuleSource, version: str | None = None) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    meeting = GlooTrainerInitInfo("127.0.0.1", free_port(), rank=0, timeout_s=60)
    WeightTransferTrainerFactory.trainer_init(
        meeting, client=WeightSyncClient(address), source=kind(model)
    ).send_weights(version)


def test_everybody_is_told(address: str) -> None:
    """Requests that run, and new ones: 503, and why; the weights come, and all is well again."""
    before = ask(address)
    assert before[0] == 200
    with pytest.raises(RefusedError, match=r"The weight no\.model.* Nothing was changed"):
        send(address, Renamed)
    assert ask(address) == before
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(ask, address, max_tokens=1500, ignore_eos=True)
        time.sleep(1)
        with pytest.raises(MemoryError):
            send(address, Dying)
        for status, reason in (running.result(), ask(address)):
            assert status == 503
            assert reason.startswith("No answers now: The weight model.layers.0.")
            assert "The engine answers again once all weights have been loaded." in reason
    send(address, version="7")
    assert ask(address) == before
    assert requests.get(f"{address}/weight_info", timeout=60).json() == {"weight_version": "7"}


def test_bad_bodies_change_nothing(address: str) -> None:
    """They are refused before a worker hears of them; a trainer's update goes on after."""
    before = ask(address)
    for info in ({"session": "a"}, {"names": 5, "dtype_names": [], "shapes": [], "session": "a"}):
        status, answer = post(f"{address}/update_weights", {"update_info": info})
        assert status == 400, answer
        assert "update_info" in answer["error"]["message"]
    assert ask(address) == before
    send(address)
    assert ask(address) == before
