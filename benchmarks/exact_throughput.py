"""What the bits of `generate()` cost: upstream, hf_compat, exact mode and Transformers, one run.

    python -m benchmarks.exact_throughput [MODEL] [--dtype bfloat16] [--json FILE]

64 prompts x 128 greedy tokens. All engines, and the model in Transformers, take the prompts in
turn, so that whatever else the machine does slows all of them; the figures are medians of rounds.
Transformers answers the prompts one by one, and in left-padded batches, whose answers are others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.bundled import BUNDLED_MODEL
from vllm import LLM, SamplingParams
from vllm.fork.startup.torch_switches import with_fresh_switches

NUM_TOKENS = 128

Sequences = list[list[int]]
Answer = Callable[[Sequences], Sequences]


def engine(model: str, dtype: str, hf_compat: bool | str) -> Answer:
    llm = LLM(
        model,
        dtype=dtype,
        hf_compat=hf_compat,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        max_num_seqs=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 30,
    )
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0)

    def answer(prompts: Sequences) -> Sequences:
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(given, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return answer


def transformers(model: PreTrainedModel, batch_size: int) -> Answer:
    @with_fresh_switches()
    @torch.inference_mode()
    def answer(prompts: Sequences) -> Sequences:
        found = []
        for first in range(0, len(prompts), batch_size):
            batch = prompts[first : first + batch_size]
            longest = max(map(len, batch))
            padding = [longest - len(prompt) for prompt in batch]
            ids = [[0] * n + prompt for n, prompt in zip(padding, batch, strict=True)]
            mask = [[0] * n + [1] * (longest - n) for n in padding]
            output = model.generate(
                torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                do_sample=False,
                max_new_tokens=NUM_TOKENS,
                min_new_tokens=NUM_TOKENS,
                pad_token_id=0,
            )
            found += output[:, longest:].tolist()
        return found

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    stock = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype)
    ).eval()
    sides: dict[str, Answer] = {
        "upstream": engine(args.model, args.dtype, False),
        "hf_compat": engine(args.model, args.dtype, True),
        "exact": engine(args.model, args.dtype, "exact"),
        "Transformers, one by one": transformers(stock, 1),
        "Transformers, batches of 32": transformers(stock, 32),
    }
    vocab = stock.config.vocab_size
    prompts = [
        [5 + (i * 37 + j * 11) % (vocab - 5) for j in range(64 + 2 * i)]
        for i in range(args.prompts)
    ]
    for answer in sides.values():
        answer(prompts[:2])
    rates: dict[str, list[float]] = {name: [] for name in sides}
    answers: dict[str, Sequences] = {}
    for _ in tqdm(range(args.rounds), desc="rounds"):
        for name, answer in sides.items():
            begin = time.perf_counter()
            answers[name] = answer(prompts)
            rates[name].append(len(prompts) * NUM_TOKENS / (time.perf_counter() - begin))

    one_by_one = "Transformers, one by one"
    title = f"{Path(args.model).name}, {args.dtype}, {len(prompts)} prompts x {NUM_TOKENS} tokens"
    table = Table(title=title)
    for column in ("", "tokens/s", "x one by one", "sequences equal"):
        table.add_column(column, justify="left" if not column else "right")
    rows = []
    for name in sides:
        pairs = zip(rates[name], rates[one_by_one], strict=True)
        rows.append(
            {
                "side": name,
                "tokens_per_second": statistics.median(rates[name]),
                "ratio": statistics.median(ours / theirs for ours, theirs in pairs),
                "equal": sum(map(list.__eq__, answers[name], answers[one_by_one])),
            }
        )
        row = rows[-1]
        rate, ratio = f"{row['tokens_per_second']:.0f}", f"{row['ratio']:.2f}"
        table.add_row(name, rate, ratio, f"{row['equal']} of {len(prompts)}")
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
