"""Classifier-free guidance: HF's second forward, as a second row of the engine's batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.hf_compat.test_calls import hf_rows
from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate, prompt_ids

if TYPE_CHECKING:
    from vllm import LLM


@pytest.fixture(scope="module")
def prompts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    return prompt_ids(tokenizer, 20)


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "fields",
    [
        {"guidance_scale": 1.5},
        {"guidance_scale": 3.0, "repetition_penalty": 1.2},
        {"guidance_scale": 0.5, "do_sample": True, "top_k": 20, "seed": 4},
        {"guidance_scale": 2, "do_sample": True, "num_return_sequences": 2, "seed": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("negative_len", [0, 1, 40])
def test_guidance(
    engine: LLM,
    hf_model: PreTrainedModel,
    prompts: list[list[int]],
    fields: dict[str, Any],
    negative_len: int,
) -> None:
    """Prompts of one chunk and of several; no negative prompt stands for the last token."""
    arguments = {"max_new_tokens": 30, **fields}
    negative = prompts[16][:negative_len] or None
    outputs = engine.generate(
        as_prompts(prompts[:5]), use_tqdm=False, negative_prompt_ids=negative, **arguments
    )
    for prompt, output in zip(prompts, outputs, strict=False):
        rows = [negative] * fields.get("num_return_sequences", 1) if negative else None
        of_hf: dict[str, Any] = {"negative_prompt_ids": torch.tensor(rows)} if rows else {}
        expected = hf_rows(hf_model, [prompt], **arguments, **of_hf)
        assert [list(one.token_ids) for one in output.outputs] == expected


def test_among_other_requests(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    configs = [
        GenerationConfig(max_new_tokens=30, **({"guidance_scale": 1.0 + i} if i % 2 else {}))
        for i in range(16)
    ]
    expected = [generate(hf_model, p, c) for p, c in zip(prompts, configs, strict=False)]
    assert token_ids(engine.generate(as_prompts(prompts[:16]), configs, use_tqdm=False)) == expected
