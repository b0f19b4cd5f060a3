"""A penalised request given as embeddings, in a fresh engine and after another request's tokens."""

from __future__ import annotations

import torch
from _report import arguments, report
from transformers import AutoModelForCausalLM

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    hf = AutoModelForCausalLM.from_pretrained(arguments["model"], dtype=torch.float32)
    ids = torch.arange(10, 42)
    embeds = hf.get_input_embeddings()(ids).detach()
    llm = LLM(
        arguments["model"],
        dtype="float32",
        max_model_len=512,
        enable_prompt_embeds=True,
        enable_prefix_caching=False,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 28,
    )
    params = SamplingParams(temperature=0, max_tokens=24, repetition_penalty=1.8)
    first = llm.generate({"prompt_embeds": embeds}, params, use_tqdm=False)[0].outputs[0]
    # Leaves in the batch's first row just the tokens that the answer above was made of.
    stale = {"prompt_token_ids": list(first.token_ids) * 2}
    llm.generate(stale, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    second = llm.generate({"prompt_embeds": embeds}, params, use_tqdm=False)[0].outputs[0]
    report({"first": list(first.token_ids), "second": list(second.token_ids)})
