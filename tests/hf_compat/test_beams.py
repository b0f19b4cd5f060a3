"""Beam search and beam sampling: all sequences and scores of `generate()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate, prompt_ids
from tests.sizes import size

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.outputs import RequestOutput

Beams = list[tuple[list[int], float]]

SETTINGS: list[dict[str, Any]] = [
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 5, "num_return_sequences": 5, "length_penalty": -1.0, "early_stopping": "never"},
    {"num_beams": 2, "num_return_sequences": 2, "repetition_penalty": 1.3, "min_new_tokens": 8},
    {"num_beams": 4, "no_repeat_ngram_size": 2, "eos_token_id": [2, 10, 13, 260]},
    {"num_beams": 3, "bad_words_ids": [[5], [17, 18]], "length_penalty": 0.0},
    {"num_beams": 3, "num_return_sequences": 3, "do_sample": True, "seed": 5},
    {"num_beams": 4, "do_sample": True, "seed": 6, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
]


@pytest.fixture(scope="module")
def prompts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    return prompt_ids(tokenizer, 50)


def hf_beams(model: PreTrainedModel, prompt: list[int], fields: dict[str, Any]) -> Beams:
    """Return the new tokens and the score of each sequence that HF returns."""
    config = {"return_dict_in_generate": True, "output_scores": True, **fields}
    if (seed := config.pop("seed", None)) is not None:
        torch.manual_seed(seed)
    with torch.inference_mode():
        output = model.generate(torch.tensor([prompt]), **config)
    lengths = (output.beam_indices >= 0).sum(dim=1).tolist()
    return [
        (output.sequences[i, len(prompt) : len(prompt) + length].tolist(), float(score))
        for i, (length, score) in enumerate(zip(lengths, output.sequences_scores, strict=True))
    ]


def check(output: RequestOutput, expected: Beams) -> None:
    assert [list(one.token_ids) for one in output.outputs] == [tokens for tokens, _ in expected]
    for one, (_, score) in zip(output.outputs, expected, strict=True):
        assert one.sequences_score == pytest.approx(score, abs=1e-3)


@pytest.mark.some(3)
@pytest.mark.parametrize("fields", SETTINGS, ids=str)
def test_all_beams(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], fields: dict[str, Any]
) -> None:
    """Several searches at once, and some that wait for places."""
    prompts = prompts[: size(8, 50)]
    fields = {"max_new_tokens": 24, **fields}
    outputs = engine.generate(as_prompts(prompts), GenerationConfig(**fields), use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        check(output, hf_beams(hf_model, prompt, fields))


def test_among_other_requests(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """Beams neither disturb others nor are disturbed."""
    fields: list[dict[str, Any]] = [
        {"max_new_tokens": 30, "num_beams": 3, "num_return_sequences": 3},
        {"max_new_tokens": 40, "repetition_penalty": 1.2},
        {"max_new_tokens": 20, "do_sample": True, "seed": 3},
        {"max_new_tokens": 12, "num_beams": 2, "do_sample": True, "seed": 4},
    ]
    configs = [GenerationConfig(**fields[i % 4]) for i in range(16)]
    outputs = engine.generate(as_prompts(prompts[:16]), configs, use_tqdm=False)
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=False)):
        if "num_beams" in fields[i % 4]:
            check(output, hf_beams(hf_model, prompt, fields[i % 4]))
        else:
            assert token_ids([output]) == [generate(hf_model, prompt, configs[i])]


def test_stop_strings(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
) -> None:
    fields = {"max_new_tokens": 24, "num_beams": 3, "stop_strings": ["\n", "("]}
    outputs = engine.generate(as_prompts(prompts[:6]), use_tqdm=False, **fields)
    for prompt, output in zip(prompts, outputs, strict=False):
        expected = hf_beams(hf_model, prompt, {**fields, "tokenizer": tokenizer})
        check(output, expected)


def test_text_and_reasons(engine: LLM, prompts: list[list[int]]) -> None:
    output = engine.generate(
        as_prompts(prompts[:1]),
        use_tqdm=False,
        num_beams=3,
        num_return_sequences=3,
        max_new_tokens=20,
    )[0]
    assert [one.index for one in output.outputs] == [0, 1, 2]
    assert output.finished
    tokenizer = engine.get_tokenizer()
    for one in output.outputs:
        assert one.text == tokenizer.decode(one.token_ids, skip_special_tokens=True)
        assert one.finish_reason == ("stop" if len(one.token_ids) < 20 else "length")
    scores = [one.sequences_score for one in output.outputs]
    assert scores == sorted(scores, reverse=True)
