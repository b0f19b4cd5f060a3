"""Engines in deterministic mode: the same logits whatever the batch, the cache, drafts and ranks.

Expected are those of the model in Transformers under the same kernels, computed without a cache,
one text at a time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.determinism import key_of
from benchmarks.determinism_side import digest, texts
from tests.engines import MODEL, ROOT, bundled_engine
from vllm import SamplingParams
from vllm.deterministic import attach
from vllm.fork_kernels.portable.sampling import portable_draw, portable_filter

if TYPE_CHECKING:
    from vllm import LLM

NUM_TOKENS = 12

COMMON: dict[str, Any] = {"deterministic": True, "dtype": "bfloat16", "max_model_len": 512}
DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}


@cache
def attached_model(dtype: torch.dtype) -> PreTrainedModel:
    return attach(AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).eval())


@pytest.fixture(scope="module")
def attached() -> PreTrainedModel:
    return attached_model(torch.bfloat16)


@torch.no_grad()
def expected_logits(model: PreTrainedModel, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Return the logits that chose each token of an answer, float32 [tokens, vocab_size]."""
    ids = torch.tensor([prompt + answer])
    return model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]


def model_of(engine: LLM) -> PreTrainedModel:
    """Return the model in Transformers, in the dtype of an engine."""
    return attached_model(engine.llm_engine.model_config.dtype)


def check(model: PreTrainedModel, prompts: list[list[int]], outputs: list[Any]) -> None:
    assert len(outputs) == len(prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0]
        assert len(answer.token_ids) == NUM_TOKENS
        expected = expected_logits(model, prompt, list(answer.token_ids))
        logits = torch.from_numpy(answer.logits)
        assert torch.equal(logits, expected), prompt[:8]
        assert logits.argmax(-1).tolist() == list(answer.token_ids)


def generate(llm: LLM, prompts: list[list[int]], **arguments: Any) -> list[Any]:
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    config = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS, "output_logits": True}
    return llm.generate(given, use_tqdm=False, **(config | arguments))


@pytest.fixture(
    scope="module",
    params=[
        # Chunks of prompts, blocks of earlier requests, and too few blocks for all of them.
        {
            "max_num_batched_tokens": 48,
            "max_num_seqs": 32,
            "enable_prefix_caching": True,
            "block_size": 16,
            "num_gpu_blocks_override": 48,
        },
        {"tensor_parallel_size": 2, "max_num_batched_tokens": 300, "dtype": "float16"},
    ],
    ids=["little-memory", "two-ranks-float16"],
)
def engine(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        if "tensor_parallel_size" in request.param:
            patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        with bundled_engine(**(COMMON | request.param)) as llm:
            yield llm


def test_batches(engine: LLM, prompts: list[list[int]]) -> None:
    check(model_of(engine), prompts, generate(engine, prompts))


def test_shuffled_again_and_alone(engine: LLM, prompts: list[list[int]]) -> None:
    """What was computed before is in the prefix cache, if there is one."""
    shuffled = random.Random(0).sample(prompts, len(prompts))
    check(model_of(engine), shuffled, generate(engine, shuffled))
    check(model_of(engine), prompts[8:9], generate(engine, prompts[8:9]))


def test_preemption_happens(engine: LLM) -> None:
    if engine.llm_engine.vllm_config.cache_config.num_gpu_blocks_override:
        counters = {metric.name: metric for metric in engine.get_metrics()}
        preempted: Any = counters["vllm:num_preemptions"]
        assert preempted.value > 0


@pytest.fixture(scope="module")
def drafting_engine() -> Iterator[LLM]:
    """Without hf_compat: vLLM's parameters, the sampler of the specification, and drafts."""
    arguments: dict[str, Any] = {
        "hf_compat": False,
        "speculative_config": DRAFTS,
        "logprobs_mode": "raw_logits",
        "max_logprobs": -1,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_FORK_CPU_ISA", "avx2")
        with bundled_engine(**(COMMON | arguments)) as llm:
            yield llm


def ask(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[Any]:
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm.generate(given, params, use_tqdm=False)


def logits_of(output: Any, vocab_size: int) -> torch.Tensor:
    """Return float32 [tokens, vocab_size] of an output with all of them."""
    rows = [[step[i].logprob for i in range(vocab_size)] for step in output.outputs[0].logprobs]
    return torch.tensor(rows)


@pytest.mark.long
def test_bits_are_the_committed_ones(drafting_engine: LLM) -> None:
    """Those of the first row of docs/determinism.md, made by other machines."""
    kept = json.loads((ROOT / "docs" / "determinism.json").read_text())["digests"]
    expected = kept[key_of(MODEL, "bfloat16", 32, 16)]
    every = texts(str(MODEL), 32, 16)
    short = [i for i, prompt in enumerate(every) if len(prompt) < 400]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=-1)
    outputs = ask(drafting_engine, [every[i] for i in short], params)
    for i, output in zip(short, outputs, strict=True):
        rows = logits_of(output, 4096).numpy().tobytes()
        assert digest(list(output.outputs[0].token_ids), rows) == expected[i]
    assert len(short) > 20


@pytest.mark.long
def test_drafts_and_another_instruction_set(
    drafting_engine: LLM, attached: PreTrainedModel, prompts: list[list[int]]
) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=-1)
    for prompt, output in zip(prompts[:8], ask(drafting_engine, prompts[:8], params), strict=True):
        answer = list(output.outputs[0].token_ids)
        expected = expected_logits(attached, prompt, answer)
        assert torch.equal(logits_of(output, expected.shape[1]), expected)
        assert expected.argmax(-1).tolist() == answer


def test_seeded_samples_are_the_specified_draws(
    drafting_engine: LLM, attached: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """Together and alone, with drafts, each token is the one of (seed, position)."""
    params = [
        SamplingParams(
            temperature=0.7 + 0.1 * (i % 4),
            top_k=(0, 40)[i % 2],
            top_p=(0.95, 1.0, 0.8)[i % 3],
            seed=1000 + i,
            max_tokens=NUM_TOKENS,
            ignore_eos=True,
        )
        for i in range(16)
    ]
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts[:16]]
    together = drafting_engine.generate(given, params, use_tqdm=False)
    for i, (prompt, output) in enumerate(zip(prompts, together, strict=False)):
        answer = list(output.outputs[0].token_ids)
        assert answer == drawn(attached, prompt, answer, params[i])
    alone = ask(drafting_engine, prompts[3:4], params[3])
    assert alone[0].outputs[0].token_ids == together[3].outputs[0].token_ids


def test_only_a_seed_repeats_a_sample(drafting_engine: LLM, prompts: list[list[int]]) -> None:
    """Without one the four answers to a prompt differ, and so do those to the same request."""

    def sample(**more: Any) -> list[tuple[int, ...]]:
        params = SamplingParams(temperature=1.5, max_tokens=NUM_TOKENS, ignore_eos=True, **more)
        outputs = ask(drafting_engine, prompts[:1], params)[0].outputs
        return [tuple(output.token_ids) for output in outputs]

    assert len({*sample(n=4), *sample(n=4)}) == 8
    assert sample() != sample()
    seeded = sample(n=4, seed=7)
    assert len(set(seeded)) == 4
    assert sample(n=4, seed=7) == seeded
    assert sample(seed=7) == seeded[:1]
    assert sample(seed=8) != seeded[:1]


def drawn(
    model: PreTrainedModel, prompt: list[int], answer: list[int], params: SamplingParams
) -> list[int]:
    """Return the tokens that the specification draws after a prompt and the answer so far."""
    logits = expected_logits(model, prompt, answer)
    count = len(answer)
    kept = portable_filter(
        logits.contiguous(),
        torch.full((count,), params.temperature),
        torch.full((count,), params.top_k, dtype=torch.int32),
        torch.full((count,), params.top_p),
        torch.zeros(count),
    )
    positions = torch.arange(len(prompt), len(prompt) + count)
    return portable_draw(kept, torch.full((count,), params.seed), positions).tolist()


def test_logprobs_of_prompts(
    drafting_engine: LLM, attached: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """A prompt's logits are those of its tokens in an answer, asked for all at once."""
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=3)
    for prompt, output in zip(prompts[:4], ask(drafting_engine, prompts[:4], params), strict=True):
        expected = expected_logits(attached, prompt[:1], prompt[1:])
        for step, row in zip(output.prompt_logprobs[1:], expected, strict=True):
            for token, found in step.items():
                assert found.logprob == row[token].item()
