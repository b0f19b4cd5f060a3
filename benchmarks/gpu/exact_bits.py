"""An engine's logits and tokens beside those of ``generate()`` on the same machine.

    python -m benchmarks.gpu.exact_bits exact|hf_compat FILE [FILE ...] [--dtype bfloat16]

Each FILE is of `benchmarks.gpu.generate`; the engine answers the same prompts all at once. Printed
is for each file for how many tokens the logits have the same bits, and how many answers are equal,
as JSON. Exact mode promises all of the first file, or the status is 1; hf_compat is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np

from benchmarks.gpu.generate import MODEL, SEED, WAYS, prompt_ids

Answers = dict[str, tuple[np.ndarray, np.ndarray]]
"""Token ids and logits by "way number"."""


def kept(file: str) -> Answers:
    """Return what `generate` wrote."""
    with np.load(file) as arrays:
        names = [name.removesuffix(" tokens") for name in arrays if name.endswith(" tokens")]
        return {name: (arrays[f"{name} tokens"], arrays[f"{name} logits"]) for name in names}


def engine_answers(mode: str, dtype: str) -> Answers:
    """Return what an engine answers to all prompts of a way at once."""
    from transformers import GenerationConfig

    from vllm import LLM

    llm = LLM(
        str(MODEL), dtype=dtype, hf_compat={"exact": "exact", "hf_compat": True}[mode],
        max_model_len=512, enforce_eager=True, gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=512 << 20, kernel_config={"enable_jit_warmup": False},
    )  # fmt: skip
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompt_ids()]
    found = {}
    for way, fields in WAYS.items():
        # Each request has its own draws, as generate() has with its prompt alone.
        configs = [GenerationConfig(**fields, output_logits=True, seed=SEED) for _ in given]
        for number, output in enumerate(llm.generate(given, configs, use_tqdm=False)):
            answer: Any = output.outputs[0]
            found[f"{way} {number}"] = (np.array(answer.token_ids), answer.logits)
    return found


def compared(found: Answers, expected: Answers) -> dict[str, Any]:
    """Return for how many tokens the logits are equal until one differs, and how many answers."""
    equal, total, differing = 0, 0, {}
    for name, (tokens, logits) in expected.items():
        our_tokens, our_logits = found[name]
        length = min(len(tokens), len(our_tokens))
        same_bits = (our_logits[:length].view(np.int32) == logits[:length].view(np.int32)).all(1)
        other_tokens = np.flatnonzero(our_tokens[:length] != tokens[:length])
        # What follows another token has another prompt.
        comparable = int(other_tokens[0]) + 1 if len(other_tokens) else length
        same = int(same_bits[:comparable].sum())
        equal, total = equal + same, total + len(tokens)
        if same != len(tokens):
            differing[name] = f"{same} of {len(tokens)} tokens"
    answers = sum(np.array_equal(found[name][0], one[0]) for name, one in expected.items())
    return {"equal": equal, "of": total, "differing": differing,
            "equal answers": answers, "answers": len(expected)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=["exact", "hf_compat"])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    found = engine_answers(options.mode, options.dtype)
    values = compared(found, kept(options.files[0]))
    for file in filter(os.path.exists, options.files[1:]):
        values[f"beside {file}"] = compared(found, kept(file))
    print(json.dumps(values))
    sys.exit(options.mode == "exact" and values["equal"] != values["of"])


if __name__ == "__main__":
    main()
