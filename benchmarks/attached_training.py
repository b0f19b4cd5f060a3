"""How long does a training step take with the engine's bits, beside the plain model's?

A step is a forward, a backward and AdamW's. The model of Transformers, plain and attached with
``training=True``, takes steps on the same tokens, by turns, so that a slow moment of the machine
hits both; each first pays for what its weights' change costs, which is packing them anew. Peak
memory is measured in a process of its own for each side. Run it in the environment in which the
distribution is installed:

    python -m benchmarks.attached_training --json attached_training.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.machine import environment

SIDES = ("plain", "attached")

MODELS = {
    "61M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8},
    "215M": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16},
}
"""Llamas with 8,192 tokens."""

BATCHES = ((1, 256), (4, 256), (1, 1024))
"""Rows, and the tokens of each."""


@dataclass
class Result:
    """Medians over all steps, in seconds."""

    model: str
    rows: int
    tokens: int
    plain_s: float
    attached_s: float
    ratio: float  # attached / plain


def make_model(name: str, side: str) -> Any:
    """Return a model with random weights, in training mode."""
    config = LlamaConfig(
        **MODELS[name],
        num_attention_heads=MODELS[name]["hidden_size"] // 64,
        num_key_value_heads=4,
        vocab_size=8192,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if side == "attached":
        from vllm.deterministic import attach

        model = attach(model, training=True)
    return model.train()


class Trainer:
    """Takes steps.

    Args:
        model: in training mode.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self, ids: torch.Tensor) -> float:
        """Take a step on tokens, int64 [rows, tokens]; return its seconds."""
        start = time.perf_counter()
        self._optimizer.zero_grad()
        self._model(ids, labels=ids, use_cache=False).loss.backward()
        self._optimizer.step()
        return time.perf_counter() - start


def tokens_of(rows: int, tokens: int) -> torch.Tensor:
    """Return any tokens, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(8192, (rows, tokens), generator=generator)


def measure(name: str, rows: int, tokens: int, steps: int) -> Result:
    """Let both sides take so many steps, by turns."""
    trainers = {side: Trainer(make_model(name, side)) for side in SIDES}
    ids = tokens_of(rows, tokens)
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for trainer in trainers.values():
        trainer.step(ids)
    for _ in range(steps):
        for side, trainer in trainers.items():
            times[side].append(trainer.step(ids))
    plain, attached = (statistics.median(times[side]) for side in SIDES)
    return Result(name, rows, tokens, plain, attached, attached / plain)


def peak_memory(side: str, name: str, rows: int, tokens: int) -> int:
    """Return the most bytes that a process of its own holds which takes two steps."""
    command = [sys.executable, "-m", __spec__.name, "--side", side, name, str(rows), str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def run_side(side: str, name: str, rows: str, tokens: str) -> None:
    """Print the peak memory of this process, in bytes, above what it held before its model."""
    import vllm.deterministic.attached.model  # noqa: F401  # of both sides

    before = most_memory()
    trainer = Trainer(make_model(name, side))
    for _ in range(2):
        trainer.step(tokens_of(int(rows), int(tokens)))
    print(most_memory() - before)


def most_memory() -> int:
    """Return the most bytes that this process has held; ``getrusage`` counts its parent's, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) * 1024


def show(results: list[Result], memory: dict[str, int], largest: str, title: str) -> None:
    """Print the results as tables."""
    table = Table("model", "rows x tokens", "plain, s", "attached, s", "ratio", title=title)
    for one in results:
        batch = f"{one.rows} x {one.tokens}"
        table.add_row(
            one.model, batch, f"{one.plain_s:.2f}", f"{one.attached_s:.2f}", f"{one.ratio:.2f}"
        )
    Console().print(table)
    plain, attached = (memory[side] / 2**20 for side in SIDES)
    Console().print(
        f"peak memory of {largest}: plain {plain:,.0f} MiB, attached {attached:,.0f} MiB, "
        f"ratio {attached / plain:.2f}"
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=7, help="of each side and measurement")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.side:
        run_side(*arguments.side)
        return
    results = [
        measure(name, rows, tokens, arguments.steps)
        for name in arguments.models
        for rows, tokens in BATCHES
    ]
    largest = arguments.models[-1]
    memory = {side: peak_memory(side, largest, *BATCHES[1]) for side in SIDES}
    isa = torch.ops.vllm_fork.cpu_isa()
    show(results, memory, largest, f"a training step, {arguments.threads} thread(s), {isa}")
    if arguments.json:
        machine = {**environment(torch.device("cpu")), "cpu_isa": isa}
        report = {
            "environment": machine,
            "results": [asdict(one) for one in results],
            "peak_memory_bytes": memory,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
