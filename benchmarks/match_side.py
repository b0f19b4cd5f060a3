"""One side of the match table: what Transformers, or an engine in one mode, answers.

    python -m benchmarks.match_side MODEL SIDE DTYPE OUTPUT [--prompts 64] [--tokens 128]
        [--prompt-tokens 400]

Each side has a process of its own, since engines set the number of threads.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # starts in half the time

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from benchmarks.match_report import KINDS
from tests.reference import prompt_ids
from vllm import LLM, SamplingParams
from vllm.fork.startup.torch_switches import use_fresh_switches
from vllm.parity.recording import SIDES, logits_digests
from vllm.parity.sides import FLAGS

MAX_IN_FLIGHT = 32
NUM_DIGESTED = (32, 16)
"""Prompts, and tokens of each, whose logits are compared: greedy ones, to the last bit."""

Sequences = list[list[int]]


def config_of(kind: str, seed: int, num_tokens: int, **fields: Any) -> GenerationConfig:
    """Return what one prompt is asked; answers go on to the last token."""
    seeded = {"seed": seed} if KINDS[kind]["do_sample"] else {}
    return GenerationConfig(
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        **KINDS[kind],
        **seeded,
        **fields,
    )


@torch.inference_mode()
def hugging_face(
    model: str, dtype: str, prompts: Sequences, num_tokens: int, trust_remote_code: bool
) -> Iterator[Any]:
    """Yield (kind, tokens, digests or None) of each prompt, alone in its batch."""
    use_fresh_switches()  # this process is this side's alone
    hf: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
    ).eval()
    bar = tqdm(total=len(KINDS) * len(prompts), desc=f"Transformers, {dtype}")
    for kind in KINDS:
        for i, prompt in enumerate(prompts):
            torch.manual_seed(i)
            output = hf.generate(
                torch.tensor([prompt]),
                generation_config=config_of(kind, i, num_tokens),
                output_logits=True,
                return_dict_in_generate=True,
            )
            found = None
            if kind == "greedy" and i < NUM_DIGESTED[0]:
                logits = torch.cat(output.logits[: NUM_DIGESTED[1]])
                found = logits_digests(logits.float().numpy())
            yield kind, output.sequences[0, len(prompt) :].tolist(), found
            bar.update()


def engine(
    model: str,
    side: str,
    dtype: str,
    prompts: Sequences,
    num_tokens: int,
    trust_remote_code: bool,
) -> Iterator[Any]:
    """Yield the same of an engine, which has all prompts at once."""
    length = max(map(len, prompts)) + num_tokens + 1
    llm = LLM(
        model,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        max_model_len=length,
        max_num_batched_tokens=max(2048, length),
        max_num_seqs=MAX_IN_FLIGHT,
        enforce_eager=True,
        enable_prefix_caching=False,
        num_gpu_blocks_override=MAX_IN_FLIGHT * -(-length // 16) + 1,
        **FLAGS[side],
    )
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    digested: dict[int, list[str]] = {}
    if side != "upstream":
        configs = [
            config_of("greedy", i, min(num_tokens, NUM_DIGESTED[1]), output_logits=True)
            for i in range(min(len(prompts), NUM_DIGESTED[0]))
        ]
        outputs = llm.generate(given[: len(configs)], configs, use_tqdm=False)
        digested = {i: logits_digests(one.outputs[0].logits) for i, one in enumerate(outputs)}
    for kind in KINDS:
        asked: Any = [config_of(kind, i, num_tokens) for i in range(len(prompts))]
        if side == "upstream":
            asked = [upstream_params(kind, i, num_tokens) for i in range(len(prompts))]
        for i, one in enumerate(llm.generate(given, asked)):
            found = digested.get(i) if kind == "greedy" else None
            yield kind, list(one.outputs[0].token_ids), found


def upstream_params(kind: str, seed: int, num_tokens: int) -> SamplingParams:
    """Return what a user of vLLM writes for the same request."""
    fields = dict(KINDS[kind])
    if fields.pop("do_sample"):
        fields["seed"] = seed
    else:
        fields["temperature"] = 0
    return SamplingParams(max_tokens=num_tokens, min_tokens=num_tokens, detokenize=False, **fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("dtype")
    parser.add_argument("output", type=Path)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=400)
    parser.add_argument("--trust-remote-code", action="store_true")
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    is_trusted = args.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(args.model, trust_remote_code=is_trusted)
    prompts = prompt_ids(tokenizer, args.prompts, args.prompt_tokens)
    asked = (args.dtype, prompts, args.tokens, is_trusted)
    answers = (
        hugging_face(args.model, *asked)
        if args.side == "hf"
        else engine(args.model, args.side, *asked)
    )
    found: dict[str, Any] = {"tokens": {kind: [] for kind in KINDS}, "digests": []}
    for kind, tokens, digested in answers:
        found["tokens"][kind].append(tokens)
        if digested is not None:
            found["digests"].append(digested)
    args.output.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
