"""How long an engine takes from the first import to its first answer, and the memory it has then.

    python -m benchmarks.engine_start [MODEL] [--dtype bfloat16] [--rounds 3]

Each start is a program of its own, and the sides start by turns; the first round, which may compile
modules, is left out. Engines with a flag start as they do by default, with the model in the
engine's process, and as upstream's do, with a process for it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.apart import printed_apart
from benchmarks.bundled import BUNDLED_MODEL

SIDES: dict[str, dict[str, Any]] = {
    "upstream": {},
    "hf_compat": {"hf_compat": True},
    "hf_compat, two processes": {"hf_compat": True, "distributed_executor_backend": "mp"},
    "exact": {"hf_compat": "exact"},
    "deterministic": {"deterministic": True},
    "deterministic, two processes": {"deterministic": True, "distributed_executor_backend": "mp"},
}
COLUMNS = ("imports", "engine", "first answer", "all", "GiB")


def start_one(model: str, dtype: str, side: str) -> dict[str, float]:
    """Start an engine in this process; return seconds, and the memory of all its processes."""
    began = time.perf_counter()
    from vllm import LLM, SamplingParams

    imported = time.perf_counter()
    # The size of the cache is the user's choice, and the time of filling it is the memory's.
    arguments: dict[str, Any] = {"max_model_len": 512, "kv_cache_memory_bytes": 1 << 28}
    llm = LLM(model, dtype=dtype, **arguments, **SIDES[side])
    ready = time.perf_counter()
    prompt = {"prompt_token_ids": [5, 80, 300, 7]}
    llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    done = time.perf_counter()
    return {
        "imports": imported - began,
        "engine": ready - imported,
        "first answer": done - ready,
        "all": done - began,
        "GiB": _memory() / (1 << 30),
    }


def _memory() -> int:
    """Return the bytes of this process and those that it started; shared pages count once each."""
    import psutil

    here = psutil.Process()
    processes = [here, *here.children(recursive=True)]
    return sum(int(process.memory_full_info().pss) for process in processes)


def start_apart(args: argparse.Namespace, side: str) -> dict[str, float]:
    """Start an engine in a program of its own."""
    arguments = [args.model, "--dtype", args.dtype, "--only", side]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    found: dict[str, float] = printed_apart(
        "benchmarks.engine_start", *arguments, environment=environment
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(start_one(args.model, args.dtype, args.only)))
        return
    rounds = [{side: start_apart(args, side) for side in SIDES} for _ in range(args.rounds + 1)][1:]
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{Path(args.model).name}, {args.dtype}: seconds to the first answer")
    for column in ("engine", *COLUMNS, "of upstream's"):
        table.add_column(column, justify="right")
    for side in SIDES:
        values = {name: statistics.median(one[side][name] for one in rounds) for name in COLUMNS}
        ratio = statistics.median(one[side]["all"] / one["upstream"]["all"] for one in rounds)
        table.add_row(side, *(f"{values[name]:.1f}" for name in COLUMNS), f"{ratio:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
