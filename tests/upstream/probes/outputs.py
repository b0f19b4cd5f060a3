"""Tokens and the bits of logprobs for a batch of mixed requests, with no flag of the fork set."""

from __future__ import annotations

from typing import Any

from _report import arguments, report

from vllm import LLM, SamplingParams
from vllm.outputs import RequestOutput


def mixed_params() -> list[SamplingParams]:
    return [
        SamplingParams(temperature=0, max_tokens=24, logprobs=5),
        SamplingParams(temperature=0, max_tokens=24, logprobs=3, repetition_penalty=1.2),
        SamplingParams(temperature=0, max_tokens=24, frequency_penalty=0.5, presence_penalty=0.3),
        SamplingParams(temperature=0.8, top_p=0.9, seed=7, max_tokens=24, logprobs=1),
        SamplingParams(temperature=1.0, top_k=20, min_p=0.05, seed=11, max_tokens=24, logprobs=1),
        SamplingParams(temperature=0, max_tokens=8, prompt_logprobs=2),
        SamplingParams(temperature=0, max_tokens=24, min_tokens=20, stop=["return"]),
        SamplingParams(temperature=0, max_tokens=24, bad_words=["self"], logit_bias={5: 2.0}),
    ]


def bits(output: RequestOutput) -> dict[str, object]:
    completion = output.outputs[0]
    return {
        "tokens": list(completion.token_ids),
        "text": completion.text,
        "finish": [completion.finish_reason, completion.stop_reason],
        "logprobs": _hex(completion.logprobs),
        "prompt_logprobs": _hex(output.prompt_logprobs),
    }


def _hex(steps: Any) -> Any:
    if steps is None:
        return None
    return [step and {str(k): (v.logprob.hex(), v.rank) for k, v in step.items()} for step in steps]


if __name__ == "__main__":
    llm = LLM(
        arguments["model"],
        dtype=arguments["dtype"],
        max_model_len=512,
        enforce_eager=arguments["eager"],
        kv_cache_memory_bytes=1 << 28,
    )
    prompts = [f"# {i}\ndef function_{i}(self, value):\n    " for i in range(8)]
    outputs = llm.generate(prompts, mixed_params(), use_tqdm=False)
    report([bits(output) for output in outputs])
