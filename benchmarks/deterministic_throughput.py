"""What deterministic mode costs: decoding and prompts beside upstream.

    python -m benchmarks.deterministic_throughput [MODEL] [--layers 4] [--json FILE]

By default a model of random weights with the shape of TinyLlama-1.1B and fewer layers. The two
engines take turns in one run, so that whatever else the machine does slows both; the figures are
medians of rounds. Both keep prompts in one chunk and cache no prefixes. Memory is what the engine's
processes have for themselves in the end, a KV cache of the same size included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import psutil
import torch
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from tools.make_random_model import make_random_model
from vllm import LLM, SamplingParams

MODES = {"upstream": False, "deterministic": True}
NUM_TOKENS = 32


@dataclass(frozen=True)
class Load:
    """What is asked at once: so many prompts of so many tokens, for so many new tokens."""

    requests: int
    prompt_tokens: int
    new_tokens: int

    @property
    def name(self) -> str:
        if self.new_tokens == 1:
            return f"prompt of {self.prompt_tokens}"
        return f"decoding, batch {self.requests}"

    @property
    def num_tokens(self) -> int:
        """Tokens that are counted: those of the prompt if it is what is measured."""
        return self.requests * (self.prompt_tokens if self.new_tokens == 1 else self.new_tokens)


LOADS = [Load(1, 512, 1), *(Load(n, 4, NUM_TOKENS) for n in (1, 8, 32, 64))]


def start(model: str, dtype: str, deterministic: bool) -> LLM:
    return LLM(
        model,
        dtype=dtype,
        deterministic=deterministic,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        max_num_seqs=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 28,
        skip_tokenizer_init=True,
    )


def start_all(model: str, dtype: str) -> tuple[dict[str, LLM], dict[str, list[psutil.Process]]]:
    """Return the engines, and the processes of each."""
    engines: dict[str, LLM] = {}
    processes: dict[str, list[psutil.Process]] = {}
    for name, flag in MODES.items():
        before = set(psutil.Process().children(recursive=True))
        engines[name] = start(model, dtype, flag)
        processes[name] = list(set(psutil.Process().children(recursive=True)) - before)
    return engines, processes


def gibibytes(processes: list[psutil.Process]) -> float:
    """Return the memory that no other process shares."""
    return sum(one.memory_full_info().uss for one in processes) / (1 << 30)


def seconds(llm: LLM, load: Load, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    vocab_size = llm.llm_engine.model_config.get_vocab_size()
    shape = (load.requests, load.prompt_tokens)
    rows = torch.randint(vocab_size, shape, generator=generator).tolist()
    prompts: Any = [{"prompt_token_ids": row} for row in rows]
    params = SamplingParams(
        max_tokens=load.new_tokens, temperature=0, ignore_eos=True, detokenize=False
    )
    begin = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - begin


def measure(engines: dict[str, LLM], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each load, with the tokens per second of each engine."""
    times: dict[tuple[str, str], list[float]] = {}
    for number in tqdm(range(rounds + 1), leave=False):
        for load in LOADS:
            for name, llm in engines.items():
                taken = seconds(llm, load, number)
                if number:  # the first round warms up
                    times.setdefault((load.name, name), []).append(taken)
    rows = []
    for load in LOADS:
        rates = {
            name: load.num_tokens / statistics.median(times[load.name, name]) for name in engines
        }
        rows.append(
            {
                "load": load.name,
                **rates,
                "ratio": rates["deterministic"] / rates["upstream"],
            }
        )
    return rows


def memory_row(processes: dict[str, list[psutil.Process]]) -> dict[str, Any]:
    used = {name: gibibytes(own) for name, own in processes.items()}
    ratio = used["deterministic"] / used["upstream"]
    return {"load": "memory, GiB", **used, "ratio": ratio}


def as_table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table("tokens per second", *MODES, "ratio", title=title)
    for row in rows:
        cells = [f"{row[name]:.{1 if row[name] > 10 else 2}f}" for name in MODES]
        table.add_row(row["load"], *cells, f"{row['ratio']:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="tinyllama-1.1b")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if not Path(model).exists():
            model = folder
            make_random_model(options.model, Path(folder), num_layers=options.layers)
        engines, processes = start_all(model, options.dtype)
        rows = [*measure(engines, options.rounds), memory_row(processes)]
    title = f"{options.model}, {options.layers} layers, {options.dtype}"
    Console().print(as_table(rows, title))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
