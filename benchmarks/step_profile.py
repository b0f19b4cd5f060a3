"""Where the time of an engine's steps goes: products, attention, other operators, Python.

    python -m benchmarks.step_profile [MODEL] [--modes none hf_compat exact deterministic]
        [--batches 1 8 32 64] [--json FILE]

Each mode has a process of its own. Steps of decoding and of prompts are taken apart. PyTorch's
profiler says what the operators take themselves; what is left of a step's time is Python (the
scheduler, the sampler's preparation, what calls the operators). Steps are timed without the
profiler, which slows them, and its shares are applied to that time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the profiler sees its own process alone

if TYPE_CHECKING:
    from vllm import LLM

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny-python-llama"
MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "hf_compat": {"hf_compat": True},
    "exact": {"hf_compat": "exact"},
    "deterministic": {"deterministic": True},
}
KINDS = ("products", "attention", "other operators", "Python")
PROMPT_TOKENS = 64
STEPS = 32

_PRODUCTS = (
    *("mm", "addmm", "bmm", "linear", "matmul", "mkldnn", "onednn", "product", "gemm", "gemv"),
    *("row_linear", "grouped"),
)
_ATTENTION = ("attention", "sdpa", "reshape_and_cache", "portable_append")


def kind_of(operator: str) -> str:
    """Return to which of `KINDS` the time of an operator counts."""
    if any(name in operator for name in _ATTENTION):
        return "attention"
    if any(name in operator for name in _PRODUCTS):
        return "products"
    return "other operators"


def start(model: str, mode: str, dtype: str) -> LLM:
    """Return an engine in this process."""
    from vllm import LLM

    return LLM(
        model,
        dtype=dtype,
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 30,
        **MODES[mode],
    )


def add_prompts(llm: LLM, batch: int, params: dict[str, Any]) -> None:
    """Give the engine a batch of prompts; all of them are taken in one step."""
    from vllm import SamplingParams

    for i in range(batch):
        ids = [5 + (i * 37 + j * 11) % 4000 for j in range(PROMPT_TOKENS)]
        llm.llm_engine.add_request(
            f"{i}-{time.monotonic_ns()}",
            {"prompt_token_ids": ids},
            SamplingParams(max_tokens=3 + 2 * STEPS, ignore_eos=True, **params),
        )


def finish(llm: LLM) -> None:
    """Let the engine answer what it has."""
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()


def shares(work: Callable[[], object]) -> dict[str, float]:
    """Return which share of some work each of `KINDS` takes, and what each operator takes."""
    from torch.profiler import ProfilerActivity, profile

    begin = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        begin = time.perf_counter()
        work()
        whole = time.perf_counter() - begin
    found = dict.fromkeys(KINDS, 0.0)
    for event in profiler.key_averages():
        found[kind_of(event.key)] += event.self_cpu_time_total / 1e6 / whole
    found["Python"] = max(0.0, 1 - sum(found.values()))
    return found


def measure(llm: LLM, batch: int, params: dict[str, Any]) -> dict[str, Any]:
    """Return the milliseconds of a step of decoding and of prompts, and what takes their time."""
    step = llm.llm_engine.step
    add_prompts(llm, batch, params)  # warms up
    finish(llm)
    prompts, decoding = [], []
    for _ in range(3):
        add_prompts(llm, batch, params)
        begin = time.perf_counter()
        step()
        prompts.append(time.perf_counter() - begin)
        step()
        for _ in range(STEPS):
            begin = time.perf_counter()
            step()
            decoding.append(time.perf_counter() - begin)
        finish(llm)
    add_prompts(llm, batch, params)
    of_prompts = shares(step)
    step()
    of_decoding = shares(lambda: [step() for _ in range(STEPS)])
    finish(llm)
    return {
        "decoding": {"ms": 1e3 * statistics.median(decoding), **of_decoding},
        "prompts": {"ms": 1e3 * statistics.median(prompts), **of_prompts},
    }


def measure_mode(args: argparse.Namespace, mode: str) -> list[dict[str, Any]]:
    """Return the rows of a mode, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.step_profile", args.model, "--dtype", args.dtype]
    command += ["--batches", *map(str, args.batches), "--params", args.params, "--only", mode]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in ("step", "batch", "mode", "ms", *KINDS):
        table.add_column(column, justify="right")
    for step in ("decoding", "prompts"):
        for row in rows:
            found = row[step]
            parts = [f"{found['ms'] * found[kind]:.2f}" for kind in KINDS]
            table.add_row(step, str(row["batch"]), row["mode"], f"{found['ms']:.2f}", *parts)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--params", default='{"temperature": 0.0, "repetition_penalty": 1.2}')
    parser.add_argument("--only", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.only:
        llm = start(args.model, args.only, args.dtype)
        params = json.loads(args.params)
        rows = [
            {"mode": args.only, "batch": batch, **measure(llm, batch, params)}
            for batch in args.batches
        ]
        print(json.dumps(rows))
        return
    rows = [row for mode in args.modes for row in measure_mode(args, mode)]
    rows.sort(key=lambda row: int(row["batch"]))
    show(f"{Path(args.model).name}, {args.dtype}: milliseconds of a step", rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
