"""Tokens per second of one way to answer, in this process.

    python -m benchmarks.gpu.engines plain|eager|hf_compat|...|transformers FOLDER

Prompts of 20 to 60 tokens are answered with 128 greedy tokens each, 1, 8 and 64 of them at once;
and one of 2,048 tokens is read, with a token as its answer. The engine's ways are its flags; plain
is upstream's code with Triton's attention, compiled and with CUDA graphs, and eager the same
without both. hf_compat and deterministic are not compiled, and have graphs of steps of decoding.
Printed are medians, as JSON, again after each of these.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "eager": {"enforce_eager": True},
    "hf_compat": {"hf_compat": True},
    "hf_compat, eager": {"hf_compat": True, "enforce_eager": True},
    "exact": {"hf_compat": "exact"},
    "deterministic": {"deterministic": True},
    "deterministic, eager": {"deterministic": True, "enforce_eager": True},
}
"""Arguments of the engine; those of Transformers are in `transformers_answers`."""

BATCHES = (1, 8, 64)
"""Prompts at once."""

LONG_PROMPT = 2048
"""Tokens of the prompt that is only read."""

MOST_TOKENS = 2304
"""Of a prompt with its answer."""

CACHE_BYTES = 3 << 30
"""Of keys and values: twice what all answers of the 8B shape need."""

Answer = Callable[[list[list[int]], int], int]
"""Answers prompts with so many tokens each, and returns how many tokens those were."""


def prompts(count: int) -> list[list[int]]:
    """Return token ids as of short questions; below 4,000, which all models have."""
    generator = random.Random(0)
    return [
        [1, *(generator.randrange(10, 4000) for _ in range(generator.randrange(19, 60)))]
        for _ in range(count)
    ]


def engine_answers(folder: str, mode: str) -> Answer:
    """Start an engine."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder, dtype="bfloat16", max_model_len=MOST_TOKENS, max_num_seqs=max(BATCHES),
        enable_prefix_caching=False, kv_cache_memory_bytes=CACHE_BYTES, **MODES[mode],
    )  # fmt: skip

    def answer(asked: list[list[int]], tokens: int) -> int:
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        given: Any = [{"prompt_token_ids": prompt} for prompt in asked]
        outputs = llm.generate(given, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return answer


def transformers_answers(folder: str, device: str) -> Answer:
    """Load the model in Transformers: a left-padded batch of all prompts."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)

    def answer(asked: list[list[int]], tokens: int) -> int:
        width = max(map(len, asked))
        padding = [width - len(prompt) for prompt in asked]
        rows = [[0] * n + prompt for n, prompt in zip(padding, asked, strict=True)]
        mask = [[0] * n + [1] * (width - n) for n in padding]
        done = model.generate(
            torch.tensor(rows, device=device), attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0,
        )  # fmt: skip
        return int(done[:, width:].numel())

    return answer


def tokens_per_second(answer: Answer, asked: list[list[int]], tokens: int, rounds: int) -> float:
    """Return the median of some rounds, after one that warms up."""
    rates = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        count = answer(asked, tokens)
        rates.append(count / (time.perf_counter() - start))
        assert count == tokens * len(asked), f"{count} tokens came"
    return round(statistics.median(rates[1:]), 2)


def rates_of(
    answer: Answer, tokens: int, rounds: int, batches: Sequence[int] = BATCHES
) -> Iterator[dict[str, float]]:
    """Yield tokens per second for so many prompts at once, as more and more of them are known, and
    at last those of reading a long prompt, which are called "prompt".
    """
    rates: dict[str, float] = {}
    for count in batches:
        rates[str(count)] = tokens_per_second(answer, prompts(count), tokens, rounds)
        yield rates
    long = [[1, *(10 + i % 3000 for i in range(LONG_PROMPT - 1))]]
    rates["prompt"] = round(LONG_PROMPT * tokens_per_second(answer, long, 1, rounds), 1)
    yield rates


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=[*MODES, "transformers"])
    parser.add_argument("folder")
    parser.add_argument("--device", default="cuda", help="of Transformers")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    start = time.perf_counter()
    if options.mode == "transformers":
        answer = transformers_answers(options.folder, options.device)
    else:
        answer = engine_answers(options.folder, options.mode)
    seconds = round(time.perf_counter() - start, 1)
    batches = BATCHES[:-1] if options.mode == "exact" else BATCHES  # it steps through requests
    for rates in rates_of(answer, options.tokens, options.rounds, batches):
        print(json.dumps({**rates, "start": seconds}), flush=True)


if __name__ == "__main__":
    main()
