"""How many answers equal Hugging Face's: this vLLM with and without hf_compat, fp32 and bf16.

    python -m benchmarks.sequences_equal [MODEL] [--json FILE]

32 prompts x 96 tokens, greedy and with repetition_penalty=1.2, all at once in vLLM, one by one in
Transformers. Without the flag the distribution is upstream vLLM bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from benchmarks.bundled import BUNDLED_MODEL
from tests.reference import generate, prompt_ids
from vllm import LLM, SamplingParams
from vllm.fork.startup.torch_switches import with_fresh_switches

PENALTIES = (1.0, 1.2)
MAX_NEW_TOKENS = 96

Sequences = list[list[int]]


@with_fresh_switches()
def hugging_face(model: str, dtype: str, prompts: Sequences) -> dict[float, Sequences]:
    hf = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    answers = {}
    for penalty in PENALTIES:
        config = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS, repetition_penalty=penalty)
        bar = tqdm(prompts, desc=f"Transformers {dtype}, penalty {penalty}")
        answers[penalty] = [generate(hf, prompt, config) for prompt in bar]
    return answers


def vllm(model: str, dtype: str, prompts: Sequences, hf_compat: bool) -> dict[float, Sequences]:
    llm = LLM(
        model,
        dtype=dtype,
        hf_compat=hf_compat,
        max_model_len=1024,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 29,
    )
    answers = {}
    for penalty in PENALTIES:
        params = SamplingParams(
            temperature=0, max_tokens=MAX_NEW_TOKENS, repetition_penalty=penalty
        )
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
        answers[penalty] = [list(output.outputs[0].token_ids) for output in outputs]
    llm.llm_engine.engine_core.shutdown()
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    prompts = prompt_ids(AutoTokenizer.from_pretrained(args.model), 32)

    rows: list[dict[str, Any]] = []
    for dtype in ("float32", "bfloat16"):
        expected = hugging_face(args.model, dtype, prompts)
        for hf_compat in (False, True):
            answers = vllm(args.model, dtype, prompts, hf_compat)
            for penalty in PENALTIES:
                pairs = zip(answers[penalty], expected[penalty], strict=True)
                rows.append({
                    "dtype": dtype,
                    "engine": "hf_compat" if hf_compat else "upstream",
                    "repetition_penalty": penalty,
                    "equal": sum(ours == theirs for ours, theirs in pairs),
                    "of": len(prompts),
                })  # fmt: skip
    table = Table("dtype", "engine", "repetition_penalty", "sequences equal to HF")
    for row in rows:
        equal = f"{row['equal']}/{row['of']}"
        table.add_row(row["dtype"], row["engine"], str(row["repetition_penalty"]), equal)
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
