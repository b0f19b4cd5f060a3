"""What receipts cost, and what an audit costs beside the generation that it checks.

    python -m benchmarks.receipts [MODEL] [--layers 4] [--json FILE]

By default a model of random weights with the shape of OPT-125m and fewer layers. Three engines of
deterministic mode take turns in one run: one without receipts, one with, and one that audits the
answers of the second. The figures are medians of rounds; every audit has to find its answers equal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from tools.make_random_model import make_random_model
from vllm import LLM
from vllm.receipts.audit import audit
from vllm.receipts.file import Claim
from vllm.receipts.proposer import speculative_config

SIDES = ("without", "with receipts", "audit")


@dataclass(frozen=True)
class Load:
    """What is asked at once: so many prompts of so many tokens, for so many new tokens."""

    requests: int
    prompt_tokens: int
    new_tokens: int

    @property
    def name(self) -> str:
        return f"{self.requests} x ({self.prompt_tokens} + {self.new_tokens} tokens)"


LOADS = [Load(1, 16, 128), Load(8, 64, 128), Load(32, 64, 64), Load(32, 256, 16)]


def start(model: str, dtype: str, **arguments: Any) -> LLM:
    return LLM(
        model,
        dtype=dtype,
        hf_compat=True,
        deterministic=True,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        max_num_seqs=64,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 28,
        skip_tokenizer_init=True,
        **arguments,
    )


def prompts(llm: LLM, load: Load, seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    shape = (load.requests, load.prompt_tokens)
    size = llm.llm_engine.model_config.get_vocab_size()
    rows = torch.randint(size, shape, generator=generator).tolist()
    return [{"prompt_token_ids": row} for row in rows]


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = run()
    return found, time.perf_counter() - begin


def one_round(engines: dict[str, LLM], load: Load, seed: int) -> dict[str, float]:
    """Return the seconds of each side."""
    asked = prompts(engines["without"], load, seed)
    seconds: dict[str, float] = {}
    lengths = {"max_new_tokens": load.new_tokens, "min_new_tokens": load.new_tokens}
    for side in SIDES[:2]:
        generate = partial(engines[side].generate, asked, use_tqdm=False, **lengths)
        outputs, seconds[side] = timed(generate)
    claims = [Claim(str(i), one.outputs[0].receipt) for i, one in enumerate(outputs)]
    verdicts, seconds["audit"] = timed(lambda: list(audit(engines["audit"], claims)))
    if any(one.differs for one in verdicts):
        raise SystemExit(f"{load.name}: {next(one for one in verdicts if one.differs)}")
    return seconds


def measure(engines: dict[str, LLM], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each load, with the seconds of each side and the ratios to the first."""
    rows = []
    for load in tqdm(LOADS, leave=False):
        times = [one_round(engines, load, number) for number in range(rounds + 1)][1:]
        medians = {side: statistics.median(one[side] for one in times) for side in SIDES}
        ratios = {
            f"{side} / without": statistics.median(one[side] / one["without"] for one in times)
            for side in SIDES[1:]
        }
        rows.append({"load": load.name, **medians, **ratios})
    return rows


def as_table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table("seconds", *list(rows[0])[1:], title=title)
    for row in rows:
        table.add_row(row["load"], *(f"{value:.2f}" for value in list(row.values())[1:]))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="opt-125m")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if not Path(model).exists():
            model = folder
            make_random_model(options.model, Path(folder), num_layers=options.layers)
        engines = {
            "without": start(model, options.dtype),
            "with receipts": start(model, options.dtype, receipts=True),
            "audit": start(
                model, options.dtype, receipts=True, speculative_config=speculative_config()
            ),
        }
        rows = measure(engines, options.rounds)
    Console().print(as_table(rows, f"{options.model}, {options.dtype}"))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
