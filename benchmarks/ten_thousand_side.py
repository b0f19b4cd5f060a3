"""One side of `benchmarks.ten_thousand`: answers prompts and writes how long it took.

python -m benchmarks.ten_thousand_side SIDE MODEL DTYPE COUNT OUTPUT
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

ENGINES: dict[str, dict[str, Any]] = {
    "upstream": {},
    "hf_compat": {"hf_compat": True},
    "exact": {"hf_compat": "exact"},
    "deterministic": {"hf_compat": True, "deterministic": True},
}
TRANSFORMERS = "Transformers"
BATCH_SIZES = (4, 16, 64)
LONGEST = 512

Prompt = tuple[list[int], int]
"""Token ids, and how many new tokens there are at most."""


@dataclass
class Result:
    """What a side took.

    Attributes:
        seconds: for all prompts.
        tokens: of all answers.
        answers: of the first prompts.
        batch_size: of Transformers.
        seconds_of_batches: likewise.
    """

    seconds: float
    tokens: int
    answers: list[list[int]] = field(default_factory=list)
    batch_size: int = 1
    seconds_of_batches: list[float] = field(default_factory=list)


def prompts_of(model: str, count: int) -> list[Prompt]:
    """Return prompts of 4 to 400 tokens, for answers of 8 to 64, always the same.

    Lengths are lognormal, as those of people's questions roughly are. The ids are those of Python
    sources where the model has a tokenizer, else drawn.
    """
    from transformers import AutoConfig, AutoTokenizer

    rng = random.Random(0)
    if (Path(model) / "tokenizer.json").exists():
        text = "".join(Path(module.__file__ or "").read_text() for module in (random, statistics))
        source: list[int] = AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    else:
        size = AutoConfig.from_pretrained(model).vocab_size
        source = [rng.randrange(size) for _ in range(20_000)]
    found = []
    for _ in range(count):
        length = min(400, max(4, int(rng.lognormvariate(4, 0.9))))
        begin = rng.randrange(len(source) - length)
        found.append((source[begin : begin + length], rng.choice((8, 16, 32, 64))))
    return found


def answer_with_engine(side: str, model: str, dtype: str, prompts: Sequence[Prompt]) -> Result:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype=dtype,
        max_model_len=LONGEST,
        max_num_batched_tokens=2048,
        max_num_seqs=128,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 30,
        skip_tokenizer_init=True,
        **ENGINES[side],
    )
    asked: Any = [{"prompt_token_ids": ids} for ids, _ in prompts]
    params = [SamplingParams(temperature=0, max_tokens=n, detokenize=False) for _, n in prompts]
    llm.generate(asked[:16], params[:16], use_tqdm=False)  # memory is touched, code is read
    begin = time.perf_counter()
    outputs = llm.generate(asked, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    return Result(seconds, sum(map(len, answers)), answers)


def answer_with_transformers(model: str, dtype: str, prompts: Sequence[Prompt]) -> Result:
    """Answer in batches with padding on the left, of the size that is fastest for the first."""
    import torch
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    list(_in_batches(hf, prompts[:4], 4))  # memory is touched
    tried = prompts[: max(BATCH_SIZES)]
    times = {size: sum(one for one, _ in _in_batches(hf, tried, size)) for size in BATCH_SIZES}
    best = min(times, key=lambda size: times[size])
    done = list(_in_batches(hf, prompts, best))
    answers = [answer for _, batch in done for answer in batch]
    seconds = [one for one, _ in done]
    return Result(sum(seconds), sum(map(len, answers)), answers, best, seconds)


def _in_batches(
    hf: Any, prompts: Sequence[Prompt], size: int
) -> Iterator[tuple[float, list[list[int]]]]:
    """Yield the seconds and the answers of each batch, cut where each prompt's answer ends."""
    import torch

    for first in range(0, len(prompts), size):
        batch = prompts[first : first + size]
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([[0] * (width - len(ids)) + ids for ids, _ in batch])
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _ in batch])
        begin = time.perf_counter()
        out = hf.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(n for _, n in batch),
            do_sample=False,
            pad_token_id=0,
        )
        seconds = time.perf_counter() - begin
        rows = out[:, width:].tolist()
        yield seconds, [_cut(hf, row[:n]) for row, (_, n) in zip(rows, batch, strict=True)]


def _cut(hf: Any, row: list[int]) -> list[int]:
    """Return an answer without what is padded after its end."""
    end = hf.generation_config.eos_token_id
    ends = end if isinstance(end, list) else [end]
    places = [i for i, token in enumerate(row) if token in ends]
    return row[: places[0] + 1] if places else row


def main() -> None:
    side, model, dtype, count, output = sys.argv[1:]
    prompts = prompts_of(model, int(count))
    result = (
        answer_with_transformers(model, dtype, prompts)
        if side == TRANSFORMERS
        else answer_with_engine(side, model, dtype, prompts)
    )
    Path(output).write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
