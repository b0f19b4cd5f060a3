"""Routes other than completions and chats."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.reference import generate, prompt_texts
from tests.server.requests import post


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "def", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "def"}], "max_tokens": 4}),
        ("/inference/v1/generate", {"token_ids": [5, 6], "sampling_params": {"max_tokens": 4}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_endpoints_still_answer(server: str, path: str, body: dict[str, Any]) -> None:
    assert post(server + path, {"model": "tiny", **body})[0] == 200


LIKE_HF = {"max_new_tokens": 12, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2}


@pytest.mark.parametrize("chat", [False, True], ids=["prompt", "messages"])
def test_invocations(
    server: str, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, chat: bool
) -> None:
    text = prompt_texts(1)[0]
    body: dict[str, Any] = {"model": "tiny", "return_token_ids": True}
    body["messages" if chat else "prompt"] = [{"role": "user", "content": text}] if chat else text
    status, answer = post(f"{server}/invocations", {**body, **LIKE_HF})
    assert status == 200
    ids = tokenizer(text, add_special_tokens=not chat)["input_ids"]
    expected = generate(hf_model, ids, GenerationConfig(**LIKE_HF))
    assert answer["choices"][0]["token_ids"] == expected
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_new_tokens": "x"}, "max_new_tokens: Input should be a valid integer."),
        ({"num_beam": 2}, "did you mean num_beams?"),
        ({"num_beams": 2, "stream": True}, "Beams are not streamed"),
    ]
    for fields, reason in refused:
        status, answer = post(f"{server}/invocations", {**body, **fields})
        assert status == 400, fields
        assert reason in answer["error"]["message"]


def test_batches_of_chats(
    server: str, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Each is answered as alone, with HF's fields and with those of upstream's single chats."""
    texts = prompt_texts(3)
    url = f"{server}/v1/chat/completions/batch"
    chats = [[{"role": "user", "content": text}] for text in texts]
    body = {"model": "tiny", "messages": chats, "return_token_ids": True}
    asked: list[dict[str, Any]] = [LIKE_HF, {**LIKE_HF, "num_beams": 3}, {"max_tokens": 9}]
    for fields in asked:
        status, answer = post(url, {**body, **fields})
        assert status == 200, answer
        fields = {"max_new_tokens": fields.get("max_tokens"), **fields}
        config = GenerationConfig(**{k: v for k, v in fields.items() if k != "max_tokens"})
        for text, choice in zip(texts, answer["choices"], strict=True):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert choice["token_ids"] == generate(hf_model, ids, config)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_new_tokens": "x"}, "valid integer"),
        ({"num_return_sequences": 2, "do_sample": True}, "do not support `n > 1`"),
        ({"max_new_tokens": 2, "max_tokens": 2}, "both limit the answer"),
        ({"encoder_repetition_penalty": -1.0}, "strictly positive float"),
    ]
    for fields, reason in refused:
        status, answer = post(url, {**body, **fields})
        assert status == 400, fields
        assert reason in answer["error"]["message"]


def test_rendered_requests_keep_the_fields(server: str) -> None:
    """What /render returns for /inference/v1/generate says the same."""
    body = {"model": "tiny", "prompt": "def", "no_repeat_ngram_size": 2}
    request = urllib.request.Request(
        f"{server}/v1/completions/render",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        (rendered,) = json.load(response)
    fields = rendered["sampling_params"]["extra_args"]["generation_config"]
    assert fields == {"no_repeat_ngram_size": 2}
