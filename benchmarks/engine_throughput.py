"""Whole-engine throughput: hf_compat against the same engine without the flag.

    python -m benchmarks.engine_throughput [MODEL] [--json FILE]

Two engines run side by side in one process tree and answer the same prompts in turn, so that
whatever else the machine does slows both; the figures are medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from benchmarks.bundled import BUNDLED_MODEL
from vllm import LLM, SamplingParams

WARPERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}


@dataclass(frozen=True)
class Request:
    """What is asked of every prompt.

    Attributes:
        fields: of ``SamplingParams``.
        seeded: whether each prompt has a seed of its own.
    """

    fields: dict[str, Any]
    seeded: bool = False


REQUESTS = {
    "greedy": Request({"temperature": 0.0}),
    "repetition_penalty": Request({"temperature": 0.0, "repetition_penalty": 1.2}),
    "sampling": Request(WARPERS),
    "sampling, seeded": Request(WARPERS, seeded=True),
}


def start(model: str, dtype: str, hf_compat: bool) -> LLM:
    return LLM(
        model,
        dtype=dtype,
        hf_compat=hf_compat,
        max_model_len=1024,
        max_num_seqs=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 30,
    )


def tokens_per_second(llm: LLM, prompts: list[dict[str, list[int]]], request: Request) -> float:
    params = [
        SamplingParams(
            max_tokens=128, ignore_eos=True, seed=i if request.seeded else None, **request.fields
        )
        for i in range(len(prompts))
    ]
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return tokens / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", nargs="+", choices=REQUESTS, default=list(REQUESTS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    engines = {name: start(args.model, args.dtype, name == "hf_compat") for name in
               ("upstream", "hf_compat")}  # fmt: skip
    prompts = [{"prompt_token_ids": [5 + (i * 37 + j * 11) % 4000 for j in range(64 + 4 * i)]}
               for i in range(64)]  # fmt: skip
    rows = []
    for kind in args.requests:
        rates: dict[str, list[float]] = {name: [] for name in engines}
        for round_ in tqdm(range(args.rounds + 1), desc=kind):
            for name, llm in engines.items():
                rate = tokens_per_second(llm, prompts, REQUESTS[kind])
                if round_ > 0:  # the first round warms up
                    rates[name].append(rate)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        pairs = zip(rates["hf_compat"], rates["upstream"], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        rows.append({"request": kind, **medians, "ratio": ratio, "rounds": rates})

    table = Table(title=f"{Path(args.model).name}, {args.dtype}, 64 prompts x 128 tokens")
    for column in ("request", "upstream tok/s", "hf_compat tok/s", "hf_compat/upstream"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["request"]),
            f"{row['upstream']:.0f}",
            f"{row['hf_compat']:.0f}",
            f"{row['ratio']:.3f}",
        )
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
