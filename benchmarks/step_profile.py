"""Where the time of an engine's steps goes: products, attention, other operators, Python.

    python -m benchmarks.step_profile [MODEL] [--modes none hf_compat exact deterministic]
        [--batches 1 8 32 64] [--params JSON] [--json FILE]

Steps of decoding and of prompts are taken apart, each mode in a process of its own. How long a step
is, and how much of it is the worker's, is measured without PyTorch's profiler; another round with
it says how the worker's time is divided. What is not the worker's is the engine's: the scheduler,
the messages between its processes, the tokens' way to the caller.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.apart import printed_apart
from benchmarks.bundled import BUNDLED_MODEL
from benchmarks.step_profile_worker import begin, end

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells when it begins
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions go to the worker

if TYPE_CHECKING:
    from vllm import LLM

MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "hf_compat": {"hf_compat": True},
    "exact": {"hf_compat": "exact"},
    "deterministic": {"deterministic": True},
}
KINDS = ("products", "attention", "other operators", "Python", "engine")
PROMPT_TOKENS = 64
STEPS = 32

_KINDS_OF_OPERATORS = {
    "attention": ("attention", "sdpa", "reshape_and_cache", "append"),
    "products": ("mm", "linear", "matmul", "mkldnn", "onednn", "product", "gemm", "gemv"),
}
"""By what is in an operator's name."""


def kind_of(operator: str) -> str:
    """Return to which of `KINDS` the time of an operator counts."""
    for kind, names in _KINDS_OF_OPERATORS.items():
        if any(name in operator for name in names):
            return kind
    return "other operators"


def start(model: str, mode: str, dtype: str, kv_cache_bytes: int = 1 << 30) -> LLM:
    """Return an engine."""
    from vllm import LLM

    return LLM(
        model,
        dtype=dtype,
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=kv_cache_bytes,
        **MODES[mode],
    )


def seconds_of(llm: LLM, batch: int, new_tokens: int, params: dict[str, Any]) -> float:
    """Answer prompts, and return how long it takes."""
    from vllm import SamplingParams

    prompts = [
        {"prompt_token_ids": [5 + (i * 37 + j * 11) % 4000 for j in range(PROMPT_TOKENS)]}
        for i in range(batch)
    ]
    first = time.perf_counter()
    llm.generate(
        prompts,
        SamplingParams(max_tokens=new_tokens, ignore_eos=True, **params),
        use_tqdm=False,
    )
    return time.perf_counter() - first


def watched(
    llm: LLM, batch: int, new_tokens: int, params: dict[str, Any], *, is_profiled: bool
) -> dict[str, Any]:
    """Return the seconds of all and of the worker, and of each operator if it is profiled."""
    llm.collective_rpc(begin, args=(is_profiled,))
    seconds = seconds_of(llm, batch, new_tokens, params)
    (found,) = llm.collective_rpc(end)
    by_kind = dict.fromkeys(KINDS, 0.0)
    for name, taken in found["operators"].items():
        by_kind[kind_of(name)] += taken
    return {"all": seconds, "worker": found["seconds"], **by_kind}


def measure(llm: LLM, batch: int, params: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the milliseconds of a step of decoding and of prompts, and what takes them."""
    seconds_of(llm, batch, 1 + STEPS, params)  # warms up
    found = {}
    for is_profiled in (False, True):
        rounds = [
            [watched(llm, batch, n, params, is_profiled=is_profiled) for n in (1, 1 + STEPS)]
            for _ in range(1 if is_profiled else 3)
        ]
        prompts = min((one for one, _ in rounds), key=lambda one: one["all"])
        whole = min((one for _, one in rounds), key=lambda one: one["all"])
        steps = {name: (whole[name] - prompts[name]) / STEPS for name in whole}
        found[is_profiled] = {"prompts": prompts, "decoding": steps}
    return {step: _milliseconds(found[False][step], found[True][step]) for step in found[True]}


def _milliseconds(timed: dict[str, float], profiled: dict[str, float]) -> dict[str, float]:
    """Divide the worker's time as the profiler does, which slows it."""
    scale = 1e3 * timed["worker"] / profiled["worker"]
    parts = {kind: scale * profiled[kind] for kind in KINDS[:3]}
    worker, whole = 1e3 * timed["worker"], 1e3 * timed["all"]
    return {
        "ms": whole,
        **parts,
        "Python": max(0.0, worker - sum(parts.values())),
        "engine": max(0.0, whole - worker),
    }


def measure_mode(args: argparse.Namespace, mode: str) -> list[dict[str, Any]]:
    """Return the rows of a mode, from a process of its own."""
    arguments = [args.model, "--dtype", args.dtype, "--batches", *map(str, args.batches)]
    arguments += ["--params", args.params, "--only", mode]
    rows: list[dict[str, Any]] = printed_apart("benchmarks.step_profile", *arguments)
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
            parts = [f"{row[step][name]:.2f}" for name in ("ms", *KINDS)]
            table.add_row(step, str(row["batch"]), row["mode"], *parts)
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
