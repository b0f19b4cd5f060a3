"""How fast each mode answers beside upstream: decoding and prompts, greedy and sampled.

    python -m benchmarks.speed_by_mode [MODEL] [--modes none hf_compat exact deterministic]

MODEL is a folder, or one of the shapes of ``tools/model_shapes.toml`` with random weights, which
``--layers`` shortens. Each mode has an engine, and they take turns in one run, so that whatever
else the machine does slows all of them; a ratio is the median of the rounds' own ratios to
upstream, which is the engine without flags, as its users have it: compiled. While one answers, the
processes of the others are stopped: upstream's worker would go on looking for work for a second,
on a core of those that are measured next. No prefixes are cached.
Memory is what an engine's processes have for themselves in the end, with a KV cache of one size.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import psutil
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from benchmarks.bundled import BUNDLED_MODEL
from benchmarks.step_profile import MODES, start
from tools.make_random_model import make_random_model
from vllm import LLM, SamplingParams

WARPERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "penalty": {"temperature": 0.0, "repetition_penalty": 1.2},
    "sampled": WARPERS,
    "seeded": {**WARPERS, "seed": 1},
}
DECODED = (4, 32)
"""Tokens of a prompt and of its answer, where decoding is measured."""


FEWEST_TOKENS = 64
"""New tokens that are measured at once: an engine that was stopped takes some steps to be warm."""


@dataclass(frozen=True)
class Load:
    """What is asked at once.

    Attributes:
        kind: one of `KINDS`.
        batch: how many prompts.
        prompt_tokens: of each.
        new_tokens: of each answer.
    """

    kind: str
    batch: int
    prompt_tokens: int
    new_tokens: int

    @property
    def name(self) -> str:
        if self.new_tokens > 1:
            return f"decoding, {self.kind}, batch {self.batch}"
        return f"{self.batch} prompts of {self.prompt_tokens}"

    @property
    def num_tokens(self) -> int:
        """Tokens that are counted: those of prompts where these are what is measured."""
        return self.batch * (self.prompt_tokens if self.new_tokens == 1 else self.new_tokens)


Rates = dict[tuple[Load, str], list[float]]


def loads_of(kinds: Iterable[str], batches: Iterable[int], read: int) -> list[Load]:
    batches = list(batches)
    decoding = [Load(kind, batch, *DECODED) for kind in kinds for batch in batches]
    return decoding + [Load("greedy", batch, read, 1) for batch in batches]


def start_all(
    options: argparse.Namespace, model: str
) -> tuple[dict[str, LLM], dict[str, list[psutil.Process]]]:
    """Return the engines, and the processes of each."""
    engines, processes = {}, {}
    for mode in options.modes:
        before = set(psutil.Process().children(recursive=True))
        engines[mode] = start(model, mode, options.dtype, options.kv_cache_mib << 20)
        processes[mode] = list(set(psutil.Process().children(recursive=True)) - before)
    return engines, processes


def gibibytes(processes: list[psutil.Process]) -> float:
    """Return the memory that no other process shares."""
    return sum(one.memory_full_info().uss for one in processes) / (1 << 30)


def rate_of(llm: LLM, load: Load, first_id: int) -> float:
    """Answer a load's prompts, a short one's several times, and return tokens per second."""
    batches: list[Any] = [
        [
            {"prompt_token_ids": [5 + (first_id + number * 101 + i * 37 + j * 11) % 4000
                                  for j in range(load.prompt_tokens)]}
            for i in range(load.batch)
        ]
        for number in range(max(1, FEWEST_TOKENS // (load.batch * load.new_tokens)))
    ]  # fmt: skip
    params = SamplingParams(max_tokens=load.new_tokens, ignore_eos=True, **KINDS[load.kind])
    begin = time.perf_counter()
    for prompts in batches:
        llm.generate(prompts, params, use_tqdm=False)
    return len(batches) * load.num_tokens / (time.perf_counter() - begin)


@contextmanager
def stopped(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Stop processes meanwhile."""
    kept = list(processes)
    for one in kept:
        one.suspend()
    try:
        yield
    finally:
        for one in kept:
            one.resume()


def measure(
    engines: dict[str, LLM],
    processes: dict[str, list[psutil.Process]],
    loads: list[Load],
    rounds: int,
) -> Rates:
    """Return the rate of each load and mode in each round; who comes first is drawn by lot."""
    rates: Rates = defaultdict(list)
    lot = random.Random(0)
    for number in tqdm(range(rounds + 1), leave=False):
        for load in loads:
            for mode in lot.sample(list(engines), len(engines)):
                others = (one for other, own in processes.items() if other != mode for one in own)
                with stopped(others):
                    rate = rate_of(engines[mode], load, number)
                if number:  # the first round warms up
                    rates[load, mode].append(rate)
    return rates


def rows_of(rates: Rates, loads: list[Load], modes: list[str]) -> list[dict[str, Any]]:
    """Return a row for each load: medians of rates, and of the rounds' ratios to the first mode."""
    rows = []
    for load in loads:
        base = rates[load, modes[0]]
        row: dict[str, Any] = {"load": load.name}
        for mode in modes:
            own = rates[load, mode]
            ratio = statistics.median(a / b for a, b in zip(own, base, strict=True))
            row[mode] = {"rate": statistics.median(own), "ratio": ratio, "rounds": own}
        rows.append(row)
    return rows


def as_table(rows: list[dict[str, Any]], memory: dict[str, float], title: str) -> Table:
    first, *others = memory
    table = Table(title=title)
    for column in ("", f"{first}, tokens/s", *(f"{mode} / {first}" for mode in others)):
        table.add_column(column, justify="right")
    for row in rows:
        ratios = (f"{row[mode]['ratio']:.2f}" for mode in others)
        table.add_row(row["load"], f"{row[first]['rate']:.0f}", *ratios)
    ratios = (f"{memory[mode] / memory[first]:.2f}" for mode in others)
    table.add_row("memory, GiB", f"{memory[first]:.2f}", *ratios)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--layers", type=int, help="of a shape with random weights")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--kv-cache-mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    loads = loads_of(options.kinds, options.batches, options.prompt_tokens)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if not Path(model).exists():
            model = folder
            make_random_model(options.model, Path(folder), num_layers=options.layers)
        engines, processes = start_all(options, model)
        rates = measure(engines, processes, loads, options.rounds)
        memory = {mode: gibibytes(own) for mode, own in processes.items()}
    rows = rows_of(rates, loads, options.modes)
    Console(width=120).print(as_table(rows, memory, f"{Path(options.model).name}, {options.dtype}"))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "memory": memory}, indent=1) + "\n")


if __name__ == "__main__":
    main()
