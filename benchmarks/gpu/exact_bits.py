"""An engine's logits and tokens beside those of ``generate()``, both on the machine's own device.

    python -m benchmarks.gpu.exact_bits exact|hf_compat --dtype bfloat16

Four prompts are continued by 64 tokens, greedily and sampled with a seed, first by Transformers
one by one, then by the engine all at once. Printed is for how many tokens the logits have the same
bits, and how many answers are equal, as JSON. Exact mode promises all of it; hf_compat is measured.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from benchmarks.gpu.model_bits import MODEL
from vllm.parity.setting import DTYPES, PROMPTS, Setting
from vllm.parity.sides import Answer, HuggingFace, engine, engine_answers

NUM_PROMPTS = 4
TOKENS = 64

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"repetition_penalty": 1.1},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 0, "top_p": 0.95, "seed": 7},
}
"""Fields of ``GenerationConfig``, and a seed."""


def setting(dtype: str, way: str) -> Setting:
    return Setting(str(MODEL), dtype, PROMPTS[:NUM_PROMPTS], TOKENS, WAYS[way])


def compare(mode: str, dtype: str) -> dict[str, Any]:
    """Return the counts of both ways."""
    expected, prompts = {}, []
    for way in WAYS:
        transformers = HuggingFace(setting(dtype, way))
        prompts = transformers.prompt_ids()
        expected[way] = transformers.answers()
    found = {}
    with engine(setting(dtype, "greedy"), mode, max(map(len, prompts))) as llm:
        for way in WAYS:
            found[way] = engine_answers(llm, setting(dtype, way), prompts)
    return counts(found, expected)


def counts(found: dict[str, list[Answer]], expected: dict[str, list[Answer]]) -> dict[str, Any]:
    """Return for how many tokens the logits are equal, and which answers are not all equal."""
    equal, total, differing, answers = 0, 0, [], 0
    for way, all_expected in expected.items():
        for number, (ours, theirs) in enumerate(zip(found[way], all_expected, strict=True)):
            same = equal_steps(ours, theirs)
            equal, total = equal + same, total + len(theirs.tokens)
            answers += ours.tokens == theirs.tokens
            if same != len(theirs.tokens):
                differing.append(f"{way}, prompt {number}: {same} of {len(theirs.tokens)} tokens")
    return {"equal": equal, "of": total, "differing": differing, "equal answers": answers,
            "answers": sum(map(len, expected.values()))}  # fmt: skip


def equal_steps(ours: Answer, theirs: Answer) -> int:
    """Return for how many tokens, until the first that differs, the logits have the same bits."""
    assert ours.logits is not None
    assert theirs.logits is not None
    same = 0
    for i, (here, there) in enumerate(zip(ours.tokens, theirs.tokens, strict=False)):
        same += np.array_equal(ours.logits[i].view(np.int32), theirs.logits[i].view(np.int32))
        if here != there:
            break
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=["exact", "hf_compat"])
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    options = parser.parse_args()
    print(json.dumps(compare(options.mode, options.dtype)))


if __name__ == "__main__":
    main()
