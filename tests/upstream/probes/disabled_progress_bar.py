"""``LLM.generate`` with progress bars switched off by TQDM_DISABLE=1."""

from __future__ import annotations

from _report import arguments, report

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(
        arguments["model"],
        dtype="float32",
        max_model_len=128,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 28,
    )
    try:
        outputs = llm.generate(["def f(x):"], SamplingParams(max_tokens=4))
        report(len(outputs))
    except ZeroDivisionError as error:
        report(f"ZeroDivisionError: {error}")
