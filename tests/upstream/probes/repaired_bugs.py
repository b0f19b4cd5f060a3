"""What three bugs of upstream's do to one engine; the one that breaks it comes last."""

from __future__ import annotations

from typing import Any

import torch
from _report import arguments, report
from transformers import AutoModelForCausalLM

from vllm import LLM, SamplingParams


def with_a_progress_bar(llm: LLM) -> str:
    """``LLM.generate`` with progress bars switched off by TQDM_DISABLE=1."""
    try:
        return str(len(llm.generate(["def f(x):"], SamplingParams(max_tokens=4))))
    except ZeroDivisionError as error:
        return f"ZeroDivisionError: {error}"


def embeds_with_a_penalty(llm: LLM) -> list[list[int]]:
    """A penalised request given as embeddings, before and after another request's tokens."""
    hf = AutoModelForCausalLM.from_pretrained(arguments["model"], dtype=torch.float32)
    embeds = hf.get_input_embeddings()(torch.arange(10, 42)).detach()
    params = SamplingParams(temperature=0, max_tokens=24, repetition_penalty=1.8)
    first = llm.generate({"prompt_embeds": embeds}, params, use_tqdm=False)[0].outputs[0]
    # Leaves in the batch's first row just the tokens that the answer above was made of.
    stale = {"prompt_token_ids": list(first.token_ids) * 2}
    llm.generate(stale, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    second = llm.generate({"prompt_embeds": embeds}, params, use_tqdm=False)[0].outputs[0]
    return [list(first.token_ids), list(second.token_ids)]


def seeded_with_chunks(llm: LLM) -> Any:
    """A seeded request whose prompt is prefilled in chunks, alone and beside another one."""
    prompt = {"prompt_token_ids": list(range(10, 200))}
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=16, ignore_eos=True)
    short = {"prompt_token_ids": list(range(10, 20))}
    try:
        alone = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
        beside = llm.generate([short, prompt], params, use_tqdm=False)[1].outputs[0].token_ids
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return [list(alone), list(beside)]


if __name__ == "__main__":
    llm = LLM(
        arguments["model"],
        dtype="float32",
        max_model_len=512,
        max_num_batched_tokens=64,
        enable_prompt_embeds=True,
        enable_prefix_caching=False,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 28,
    )
    report(
        {
            "progress_bar": with_a_progress_bar(llm),
            "embeds": embeds_with_a_penalty(llm),
            "seeded": seeded_with_chunks(llm),
        }
    )
