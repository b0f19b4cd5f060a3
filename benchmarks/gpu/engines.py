"""Tokens per second of an engine of an 8B Llama, in this process.

    python -m benchmarks.gpu.engines deterministic|plain|batch-invariant|compiled

Prompts of 20 to 60 tokens are answered with 64 greedy tokens each, 1 and 64 of them at once; and
one of 2,048 tokens is read, with a token as its answer. The weights are made up on the GPU. plain
is upstream's code without torch.compile, since that takes minutes, with CUDA graphs of decoding and
Triton's attention: what deterministic is compared with. batch-invariant is the same with upstream's
VLLM_BATCH_INVARIANT=1, and compiled as users start it. Printed are medians, as JSON, again after
each of these.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.shapes import SHAPES, write_config

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

_GRAPHS = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 64]}
_PLAIN = {
    "attention_backend": "TRITON_ATTN",
    "compilation_config": {"mode": 0, **_GRAPHS},
    "kernel_config": {"enable_jit_warmup": False},
}
_DETERMINISTIC = {"deterministic": True, "kernel_config": {"enable_jit_warmup": False}}
MODES: dict[str, dict[str, Any]] = {
    "plain": _PLAIN,
    "batch-invariant": _PLAIN,
    "compiled": {},
    "deterministic": {**_DETERMINISTIC, "compilation_config": _GRAPHS},
    "deterministic, eager": {**_DETERMINISTIC, "enforce_eager": True},
}
"""Arguments of the engine."""

BATCHES = (1, 64)
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


def start(mode: str, shape: str) -> Answer:
    """Start an engine in this process, with weights that are made up."""
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        write_config(shape, Path(folder))
        llm = LLM(
            folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16",
            max_model_len=MOST_TOKENS, max_num_seqs=max(BATCHES), enable_prefix_caching=False,
            kv_cache_memory_bytes=CACHE_BYTES, gpu_memory_utilization=0.5, **MODES[mode],
        )  # fmt: skip

    def answer(asked: list[list[int]], tokens: int) -> int:
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        given: Any = [{"prompt_token_ids": prompt} for prompt in asked]
        outputs = llm.generate(given, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

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


def rates_of(answer: Answer, tokens: int, rounds: int) -> Iterator[dict[str, float]]:
    """Yield tokens per second for so many prompts at once, as more and more of them are known, and
    at last those of reading a long prompt, which are called "prompt".
    """
    rates: dict[str, float] = {}
    for count in BATCHES:
        rates[str(count)] = tokens_per_second(answer, prompts(count), tokens, rounds)
        yield rates
    long = [[1, *(10 + i % 3000 for i in range(LONG_PROMPT - 1))]]
    rates["prompt"] = round(LONG_PROMPT * tokens_per_second(answer, long, 1, rounds), 1)
    yield rates


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--shape", choices=SHAPES, default="8B")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.mode == "batch-invariant":
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    begin = time.perf_counter()
    answer = start(options.mode, options.shape)
    seconds = round(time.perf_counter() - begin, 1)
    for rates in rates_of(answer, options.tokens, options.rounds):
        print(json.dumps({**rates, "start": seconds}), flush=True)


if __name__ == "__main__":
    main()
