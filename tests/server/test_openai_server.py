"""``vllm serve --hf-compat`` answered by the openai client, against Hugging Face."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.reference import generate, prompt_texts

pytestmark = pytest.mark.fast


def complete(client: openai.OpenAI, prompt: str, **extra: Any) -> list[int]:
    """Return the tokens of one completion (``return_token_ids`` is upstream's addition)."""
    body = {"return_token_ids": True, **extra}
    response = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=32, extra_body=body
    )
    token_ids: list[int] = response.choices[0].to_dict()["token_ids"]  # type: ignore[assignment]
    return token_ids


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_same_tokens_as_hf(
    client: openai.OpenAI,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    penalty: float,
) -> None:
    """Sixteen requests at once; the client sets no temperature, and gets HF's greedy default."""
    texts = prompt_texts(16)
    config = GenerationConfig(max_new_tokens=32, repetition_penalty=penalty)
    expected = [generate(hf_model, tokenizer(text)["input_ids"], config) for text in texts]
    with ThreadPoolExecutor(16) as pool:
        answers = list(
            pool.map(lambda text: complete(client, text, repetition_penalty=penalty), texts)
        )
    assert answers == expected


def test_samples_of_hf(
    client: openai.OpenAI, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """A temperature and a seed; all that the client leaves open has HF's default (top_k=50)."""
    texts = prompt_texts(12)
    configs = [
        GenerationConfig(max_new_tokens=32, do_sample=True, temperature=0.8, seed=i)
        for i in range(len(texts))
    ]
    expected = [
        generate(hf_model, tokenizer(text)["input_ids"], config)
        for text, config in zip(texts, configs, strict=True)
    ]
    with ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(
                lambda i: complete(client, texts[i], temperature=0.8, seed=i), range(len(texts))
            )
        )
    assert answers == expected


def test_streaming_gives_the_same_tokens(
    client: openai.OpenAI, tokenizer: PreTrainedTokenizerBase
) -> None:
    text = prompt_texts(1)[0]
    stream = client.completions.create(
        model="tiny",
        prompt=text,
        max_tokens=32,
        stream=True,
        extra_body={"repetition_penalty": 1.2},
    )
    pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    whole = complete(client, text, repetition_penalty=1.2)
    assert "".join(pieces) == tokenizer.decode(whole, skip_special_tokens=True)
    assert len(pieces) > 5


def test_refusals_are_bad_requests(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="beam search"):
        client.completions.create(
            model="tiny", prompt="def", n=2, extra_body={"use_beam_search": True}
        )
    assert complete(client, "def f("), "a refused request has harmed the server"
