"""hf_compat answers `generate()` token for token, whatever the engine does with the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.engines import bundled_engine
from tests.reference import generate, prompt_ids, prompt_texts

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput


def token_ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def as_prompts(prompts: list[list[int]]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": prompt} for prompt in prompts]


@pytest.mark.parametrize("penalty", [pytest.param(1.0, marks=pytest.mark.long), 1.2])
def test_32_prompts_x_96_tokens(
    engine: LLM, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, penalty: float
) -> None:
    config = GenerationConfig(max_new_tokens=96, repetition_penalty=penalty)
    prompts = prompt_ids(tokenizer, 32)
    assert max(map(len, prompts)) > 256, "no prompt is prefilled in chunks"
    expected = [generate(hf_model, prompt, config) for prompt in prompts]
    assert token_ids(engine.generate(as_prompts(prompts), config, use_tqdm=False)) == expected


def test_penalty_changes_these_prompts(
    hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The test above would pass an engine without a penalty if the penalty changed nothing."""
    prompts = prompt_ids(tokenizer, 4)
    plain, penalised = (
        [
            generate(hf_model, p, GenerationConfig(max_new_tokens=32, repetition_penalty=r))
            for p in prompts
        ]
        for r in (1.0, 1.2)
    )
    assert all(a != b for a, b in zip(plain, penalised, strict=True))


def test_a_configuration_for_each_prompt(
    engine: LLM, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = prompt_ids(tokenizer, 6)
    configs = [
        GenerationConfig(max_new_tokens=8 + 5 * i, repetition_penalty=penalty)
        for i, penalty in enumerate((1.0, 0.8, 1.05, 1.5, 3.0, 1.2))
    ]
    expected = [generate(hf_model, p, c) for p, c in zip(prompts, configs, strict=True)]
    assert token_ids(engine.generate(as_prompts(prompts), configs, use_tqdm=False)) == expected


def test_text_in_text_out(
    engine: LLM, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = prompt_texts(4)
    config = GenerationConfig(max_new_tokens=24)
    outputs = engine.generate(texts, config, use_tqdm=False)
    for text, output in zip(texts, outputs, strict=True):
        new = generate(hf_model, tokenizer(text)["input_ids"], config)
        assert output.outputs[0].text == tokenizer.decode(new, skip_special_tokens=True)


@pytest.fixture(scope="module")
def crowded_engine() -> Iterator[LLM]:
    """An engine with chunks of 64 tokens and a KV cache too small for its requests."""
    small = {"max_num_batched_tokens": 64, "block_size": 32, "num_gpu_blocks_override": 32}
    with bundled_engine(max_model_len=512, **small) as llm:
        yield llm


def counter(engine: LLM, name: str) -> int:
    return sum(int(metric.value) for metric in engine.get_metrics() if metric.name == name)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.3},
        {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "no_repeat_ngram_size": 4},
        {"num_beams": 3, "repetition_penalty": 1.1, "max_new_tokens": 32},
        {"num_beams": 2, "do_sample": True, "top_k": 30, "max_new_tokens": 32},
    ],
    ids=["greedy", "sampling", "beams", "beam sampling"],
)
def test_chunks_preemption_and_prefix_cache(
    crowded_engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    fields: dict[str, Any],
) -> None:
    prompts = prompt_ids(tokenizer, 16, max_len=200)
    configs = [
        GenerationConfig(**{"max_new_tokens": 64, "eos_token_id": -1, "seed": i, **fields})
        for i in range(len(prompts))
    ]
    expected = [generate(hf_model, p, c) for p, c in zip(prompts, configs, strict=True)]

    preempted = counter(crowded_engine, "vllm:num_preemptions")
    first = crowded_engine.generate(as_prompts(prompts), configs, use_tqdm=False)
    assert token_ids(first) == expected
    assert counter(crowded_engine, "vllm:num_preemptions") > preempted, "nothing was preempted"

    hits = counter(crowded_engine, "vllm:prefix_cache_hits")
    again = crowded_engine.generate(as_prompts(prompts[-4:]), configs[-4:], use_tqdm=False)
    assert token_ids(again) == expected[-4:]
    assert counter(crowded_engine, "vllm:prefix_cache_hits") > hits, "no prefix was cached"
