"""One engine of `benchmarks.determinism`: asks all prompts and writes digests of the answers.

python -m benchmarks.determinism_side MODEL DTYPE MODE ARGUMENTS ORDER OUTPUT PROMPTS TOKENS
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

if TYPE_CHECKING:
    from vllm import LLM

LONGEST = 2048
"""Tokens of the longest prompts and their answers."""

Answers = list[tuple[list[int], list[bytes]]]
"""Token ids, and the logits that chose each."""


def start(model: str, dtype: str, mode: str, arguments: dict[str, Any]) -> LLM:
    from vllm import LLM

    settings: dict[str, Any] = {
        "dtype": dtype,
        "deterministic": mode == "deterministic",
        "max_model_len": LONGEST,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "logprobs_mode": "raw_logits",
        "max_logprobs": -1,
    }
    if "num_gpu_blocks_override" not in arguments:
        settings["kv_cache_memory_bytes"] = 1 << 29
    return LLM(model, **(settings | arguments))


def texts(model: str, count: int, tokens: int) -> list[list[int]]:
    """Return random token ids, always the same, whose answers have so many tokens.

    Most have up to 80, each fourth begins with the same 256, and each sixteenth is the longest that
    there can be.
    """
    from transformers import AutoConfig

    vocabulary = AutoConfig.from_pretrained(model).vocab_size
    generator = random.Random(0)
    common = [generator.randrange(vocabulary) for _ in range(256)]
    found = []
    for i in range(count):
        length = 1 + generator.randrange(600 if i % 8 == 0 else 80)
        if i % 16 == 0:
            length = LONGEST - tokens - len(common)
        own = [generator.randrange(vocabulary) for _ in range(length)]
        found.append((common if i % 4 == 0 else []) + own)
    return found


def digest(token_ids: list[int], rows: bytes) -> str:
    """Return that of an answer and of the bits of its logits, float32 [tokens, vocab_size]."""
    return hashlib.sha256(array("i", token_ids).tobytes() + rows).hexdigest()[:32]


def answer(llm: LLM, prompts: list[list[int]], tokens: int) -> Answers:
    """Ask all at once."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, logprobs=-1)
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = [one.outputs[0] for one in llm.generate(given, params, use_tqdm=False)]
    return [(list(one.token_ids), [row_bytes(row) for row in one.logprobs]) for one in outputs]


def recompute(llm: LLM, prompts: list[list[int]], answers: Answers) -> Answers:
    """Choose each token of the same answers anew, after a prompt that has those before it."""
    starts = [
        prompt + token_ids[:i]
        for prompt, (token_ids, _) in zip(prompts, answers, strict=True)
        for i in range(len(token_ids))
    ]
    steps = iter(answer(llm, starts, 1))
    found: Answers = []
    for token_ids, _ in answers:
        own = [next(steps) for _ in token_ids]
        found.append(([ids[0] for ids, _ in own], [rows[0] for _, rows in own]))
    return found


def row_bytes(row: Any) -> bytes:
    """Return the bits of all logits of a step, in the order of the vocabulary."""
    return array("f", (row[i].logprob for i in range(len(row)))).tobytes()


def ask(llm: LLM, prompts: list[list[int]], order: str, tokens: int) -> Answers:
    """Return the answers in the order of the prompts; see `Circumstance.order`."""
    if order == "alone":
        return [answer(llm, [prompt], tokens)[0] for prompt in prompts]
    if order == "prompts":
        return recompute(llm, prompts, answer(llm, prompts, tokens))
    if order == "shuffled":
        places = random.Random(1).sample(range(len(prompts)), len(prompts))
        found = answer(llm, [prompts[i] for i in places], tokens)
        return [found[places.index(i)] for i in range(len(prompts))]
    if order == "twice":
        answer(llm, prompts, tokens)
    return answer(llm, prompts, tokens)


def main() -> None:
    model, dtype, mode, arguments, order, output, prompts, tokens = sys.argv[1:]
    llm = start(model, dtype, mode, json.loads(arguments))
    answers = ask(llm, texts(model, int(prompts), int(tokens)), order, int(tokens))
    digests = [digest(token_ids, b"".join(rows)) for token_ids, rows in answers]
    logits = sum(len(row) // 4 for _, rows in answers for row in rows)
    Path(output).write_text(json.dumps({"digests": digests, "logits": logits}))


if __name__ == "__main__":
    main()
