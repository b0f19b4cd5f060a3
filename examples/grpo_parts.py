"""What is around the loop of examples/grpo.py: server, reward, optimizer, sending of weights."""

import argparse
import ast
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import torch
from transformers import AutoModelForCausalLM

from vllm.deterministic import attach
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory
from vllm.fork.weight_transfer import GlooTrainerInitInfo, WeightSyncClient


@contextmanager
def server(arguments: argparse.Namespace) -> Iterator[str]:
    """Start an engine that takes weights or adapters, and yield its address."""
    port = free_port()
    command = ["vllm", "serve", arguments.model, "--port", str(port), "--dtype", "bfloat16"]
    command += ["--max-model-len", "512", "--kv-cache-memory-bytes", str(1 << 28)]
    command += ["--weight-transfer-config", '{"backend": "gloo"}']
    command += [] if arguments.plain else ["--deterministic"]
    command += ["--enable-lora", "--max-lora-rank", "16"] if arguments.lora else []
    can_sleep = arguments.sleep and torch.cuda.is_available()  # on a CPU sleeping keeps everything
    command += ["--enable-sleep-mode"] if can_sleep else []
    variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    log = Path(tempfile.mkdtemp()) / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=output, stderr=output
        )
    try:
        while True:
            try:
                requests.get(f"http://127.0.0.1:{port}/health", timeout=10)
                break
            except requests.ConnectionError:
                if process.poll() is not None:
                    raise SystemExit(f"The server ended: {log} says why.") from None
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(url: str, **body: Any) -> Any:
    answer = requests.post(url, json=body, timeout=600)
    if not answer.ok:
        raise SystemExit(f"{url}: {answer.text}")
    return answer.json() if answer.content.startswith(b"{") else None  # some say nothing


def reward_of(text: str) -> float:
    """Return the share of a text's lines, from the first one on, that is Python."""
    lines = text.splitlines()[:-1]
    for end in range(len(lines), 0, -1):
        try:
            ast.parse("\n".join(lines[:end]))
        except (SyntaxError, ValueError):
            continue
        return end / len(lines)
    return 0.0


class Trained:
    """What is trained, its optimizer with float32 copies of it, and the folder that keeps them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
        model = model if arguments.plain else attach(model, training=True)
        if arguments.lora:
            from peft import LoraConfig, get_peft_model  # pip install -e ".[rl]"

            model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, task_type="CAUSAL_LM"))
        self.model = model.train()
        self.step = 0
        self._own = [one for one in self.model.parameters() if one.requires_grad]
        self._copies = [one.detach().float().clone() for one in self._own]
        rate = 1e-3 if arguments.lora else 1e-4
        self._optimizer = torch.optim.AdamW(self._copies, lr=rate, weight_decay=0.0)
        self._file = arguments.folder and arguments.folder / "trained.pt"
        if self._file and self._file.exists():
            kept = torch.load(self._file)
            self.step = kept["step"]
            self._optimizer.load_state_dict(kept["optimizer"])
            self._write(kept["copies"])

    def _write(self, copies: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for own, mine, new in zip(self._own, self._copies, copies, strict=True):
                own.copy_(mine.copy_(new))

    def update(self, loss: torch.Tensor) -> None:
        """Make one step."""
        loss.backward()
        for own, copy in zip(self._own, self._copies, strict=True):
            assert own.grad is not None
            copy.grad, own.grad = own.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self._copies, 1.0)
        self._optimizer.step()
        self._write(self._copies)
        self.step += 1

    def keep(self) -> None:
        """Write to the folder, if there is one, so that a kill at any time loses one step."""
        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            state = {"step": self.step, "optimizer": self._optimizer.state_dict()}
            torch.save(state | {"copies": self._copies}, self._file.with_suffix(".new"))
            self._file.with_suffix(".new").rename(self._file)


def sender(url: str, trained: Trained, arguments: argparse.Namespace) -> Callable[[], None]:
    """Return what gives the engine the weights, or the adapter, as they are."""
    if not arguments.lora:
        meeting = GlooTrainerInitInfo("127.0.0.1", free_port(), rank=0)
        client, source = WeightSyncClient(url), ModuleSource(trained.model)
        return WeightTransferTrainerFactory.trainer_init(
            meeting, client=client, source=source
        ).send_weights
    folder = tempfile.mkdtemp()

    def send() -> None:
        trained.model.save_pretrained(folder)
        body = {"lora_name": "policy", "lora_path": folder, "load_inplace": True}
        post(f"{url}/v1/load_lora_adapter", **body)

    return send
