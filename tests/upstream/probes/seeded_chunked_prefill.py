"""A seeded request whose prompt is prefilled in chunks, beside another one; and the same alone."""

from __future__ import annotations

from _report import arguments, report

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(
        arguments["model"],
        dtype="float32",
        max_model_len=512,
        max_num_batched_tokens=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 28,
    )
    prompt = {"prompt_token_ids": list(range(10, 200))}
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=16, ignore_eos=True)
    short = {"prompt_token_ids": list(range(10, 20))}
    alone = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
    beside = llm.generate([short, prompt], params, use_tqdm=False)[1].outputs[0].token_ids
    report({"alone": list(alone), "beside": list(beside)})
