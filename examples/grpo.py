"""Reinforcement learning in which the trainer and the engine agree to the last bit (GRPO).

A server answers prompts, this process trains a model of Transformers on the answers, and sends it
the new weights after each step. The reward says whether an answer is Python. After each step this
prints the mean reward, and how far the log-probabilities of the sampled tokens were apart between
trainer and engine: 0.0, as both compute with the same bits. With --plain they do without.

python examples/grpo.py [--plain] [--lora] [--sleep] [--steps 50] [--model MODEL] [--folder DIR]

With --folder it keeps what it trains there, and goes on with it.
"""

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

from vllm.deterministic import attach, token_log_probs
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory
from vllm.fork.weight_transfer import GlooTrainerInitInfo, WeightSyncClient

GROUP, NEW_TOKENS = 8, 32
PROMPTS = [
    "def read_lines(path):\n", "class Queue:\n    def __init__(self", "import os\nimport",
    "for name in names:\n", "def main(args):\n    if", "class Parser:\n", "x = [1, 2]\n",
    "def test_parse(self):\n    self.assert",
]  # fmt: skip


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


def sample(url: str, arguments: argparse.Namespace, step: int) -> list[dict[str, Any]]:
    """Return a group of answers to each prompt: tokens, log-probabilities, advantages."""
    rows = []
    answer = post(
        f"{url}/v1/completions",
        model="policy" if arguments.lora else arguments.model,
        prompt=PROMPTS,
        n=GROUP,
        max_tokens=NEW_TOKENS,
        temperature=1.0,
        seed=step,
        logprobs=0,
        return_token_ids=True,
    )
    for index, choice in enumerate(answer["choices"]):
        prompt = PROMPTS[index // GROUP]
        rows.append(
            {
                "prompt": choice["prompt_token_ids"],
                "answer": choice["token_ids"],
                "log_probs": choice["logprobs"]["token_logprobs"],
                "reward": reward_of(prompt + choice["text"]),
            }
        )
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, GROUP)
    centred = rewards - rewards.mean(1, keepdim=True)
    advantages = centred / (rewards.std(1, keepdim=True) + 1e-4)
    return [row | {"advantage": one} for row, one in zip(rows, advantages.flatten(), strict=True)]


def log_probs_of(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, kept: int, plain: bool
) -> torch.Tensor:
    """Return the log-probabilities [rows, kept] of the last tokens of each row."""
    if not plain:
        return token_log_probs(model, ids, attention_mask=mask, logits_to_keep=kept)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = model(ids, attention_mask=mask, position_ids=positions, logits_to_keep=kept + 1)
    probabilities = output.logits[:, :-1].float().log_softmax(-1)
    return probabilities.gather(-1, ids[:, -kept:, None])[..., 0]


def loss_of(
    model: Any, rows: list[dict[str, Any]], plain: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return GRPO's loss, and log(trainer / engine) of each sampled token."""
    kept = max(len(row["answer"]) for row in rows)
    width = max(len(row["prompt"]) for row in rows) + kept
    ids, mask = torch.zeros(2, len(rows), width, dtype=torch.long)
    theirs, weights = torch.zeros(2, len(rows), kept)
    for index, row in enumerate(rows):
        tokens = row["prompt"] + row["answer"]
        ids[index, -len(tokens) :] = torch.tensor(tokens)
        mask[index, -len(tokens) :] = 1
        theirs[index, -len(row["answer"]) :] = torch.tensor(row["log_probs"])
        weights[index, -len(row["answer"]) :] = 1
    advantages = torch.stack([row["advantage"] for row in rows])[:, None]
    log_ratios = log_probs_of(model, ids, mask, kept, plain) - theirs
    ratios = log_ratios.exp()
    gains = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    return -(gains * weights).sum() / weights.sum(), log_ratios.detach()[weights.bool()]


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

    def update(self, rows: list[dict[str, Any]], plain: bool) -> torch.Tensor:
        """Make one step, and return the log-ratios before it."""
        loss, log_ratios = loss_of(self.model, rows, plain)
        loss.backward()
        for own, copy in zip(self._own, self._copies, strict=True):
            assert own.grad is not None
            copy.grad, own.grad = own.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self._copies, 1.0)
        self._optimizer.step()
        self._write(self._copies)
        self.step += 1
        return log_ratios

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


def train(arguments: argparse.Namespace) -> Iterator[tuple[int, float, torch.Tensor]]:
    """Yield the number of each step, the mean reward, and log(trainer / engine) of each token."""
    trained = Trained(arguments)
    with server(arguments) as url:
        send = sender(url, trained, arguments)
        send()
        while trained.step < arguments.steps:
            rows = sample(url, arguments, trained.step)
            if arguments.sleep:
                post(f"{url}/sleep?level=1")
            log_ratios = trained.update(rows, arguments.plain)
            trained.keep()
            if arguments.sleep:
                post(f"{url}/wake_up")
            send()
            yield trained.step, sum(row["reward"] for row in rows) / len(rows), log_ratios


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/tiny-python-llama")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--folder", type=Path)
    for flag in ("--plain", "--lora", "--sleep"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(words)


def main() -> None:
    largest = 0.0
    for step, reward, log_ratios in train(parse()):
        apart = log_ratios.abs().max().item()
        largest = max(largest, apart)
        print(f"step {step}: reward {reward:.3f}, log-ratios at most {apart}", flush=True)
    print(f"The largest |log(trainer / engine)| of all steps: {largest}")


if __name__ == "__main__":
    main()
