"""The server's answers to bodies with HF's fields, compared with `generate()`."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.reference import equal_to_the_end, generate, prompt_texts
from tests.server.requests import post

NUM_REQUESTS = 100


PROCESSORS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"encoder_repetition_penalty": 1.2},
    {"no_repeat_ngram_size": 2},
    {"encoder_no_repeat_ngram_size": 3},
    {"bad_words_ids": [[10], [5, 200]]},
    {"sequence_bias": [[[300], 4.0], [[10, 11], -3.0]]},
    {"suppress_tokens": list(range(40, 300))},
    {"begin_suppress_tokens": list(range(3, 400))},
    {"min_new_tokens": 8, "eos_token_id": [10, 315, 286]},
    {"min_length": 20, "eos_token_id": 10},
    {"forced_eos_token_id": 77},
    {"exponential_decay_length_penalty": [3, 1.4], "eos_token_id": 10},
    {"renormalize_logits": True, "remove_invalid_values": True},
    {"watermarking_config": {"bias": 3.0, "seeding_scheme": "selfhash"}},
]


WARPERS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.4, "top_k": 20},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.7},
    {"epsilon_cutoff": 0.003},
    {"eta_cutoff": 0.003},
    {"top_h": 0.5},
]


@dataclass(frozen=True)
class Case:
    """A request, and what it means to `generate()`.

    Attributes:
        text: the prompt, or the message of a chat.
        body: besides the prompt, without a limit of the length.
        new_tokens: the limit.
        length: the field that says so.
    """

    text: str
    body: dict[str, Any]
    new_tokens: int
    length: str
    chat: bool
    stream: bool
    echo: bool
    logprobs: bool

    def config(self) -> GenerationConfig:
        """Return it in HF's terms."""
        fields = {"do_sample": "temperature" in self.body, **self.body}
        return GenerationConfig(max_new_tokens=self.new_tokens, **fields)

    def arguments(self, prompt_len: int) -> dict[str, Any]:
        """Return the arguments of the openai client."""
        # Upstream echoes no text to those who want token ids.
        extra_body = {**self.body, "return_token_ids": not self.echo, "n": 1}
        total = {"max_length": prompt_len + self.new_tokens}
        extra_body |= total if self.length == "max_length" else {self.length: self.new_tokens}
        arguments: dict[str, Any] = {"model": "tiny", "stream": self.stream}
        if self.chat:
            arguments["messages"] = [{"role": "user", "content": self.text}]
            extra_body |= {"logprobs": True, "top_logprobs": 2} if self.logprobs else {}
        else:
            arguments["prompt"] = self.text
            extra_body |= {"logprobs": 2} if self.logprobs else {}
            extra_body |= {"echo": True} if self.echo else {}
        return arguments | {"extra_body": extra_body}


def make_cases() -> list[Case]:
    rng = random.Random(0)
    cases = []
    for i, text in enumerate(prompt_texts(NUM_REQUESTS)):
        body = dict(rng.choice(PROCESSORS)) if i % 3 else {}
        if i % 3 == 2:
            body |= rng.choice(PROCESSORS)
        if i % 2:
            body |= {**rng.choice(WARPERS), "do_sample": True, "seed": i}
            if "temperature" in body and rng.random() < 0.5:
                del body["do_sample"]  # a temperature says as much
        elif rng.random() < 0.3:
            body |= {"do_sample": False, "num_return_sequences": 1}
        chat = rng.random() < 0.4
        lengths = ["max_new_tokens", "max_length", "max_tokens"]
        cases.append(
            Case(
                text=text[-400:],
                body=body,
                new_tokens=rng.randrange(8, 25),
                length=rng.choice(lengths),
                chat=chat,
                stream=rng.random() < 0.4,
                echo=not chat and rng.random() < 0.3,
                logprobs=rng.random() < 0.3,
            )
        )
    return cases


@dataclass
class Answer:
    token_ids: list[int]
    text: str
    num_logprobs: int


def ask(client: openai.OpenAI, case: Case, prompt_len: int) -> Answer:
    """Send a case and put its answer together."""
    create = client.chat.completions.create if case.chat else client.completions.create
    response: Any = create(**case.arguments(prompt_len))
    chunks = list(response) if case.stream else [response]
    choices = [choice.to_dict() for chunk in chunks for choice in chunk.choices]
    answer = Answer([], "", 0)
    for choice in choices:
        answer.token_ids += choice.get("token_ids") or []
        content = choice.get("delta") or choice.get("message") or {}
        answer.text += choice.get("text") or content.get("content") or ""
        logprobs = choice.get("logprobs") or {}
        answer.num_logprobs += len(logprobs.get("tokens") or logprobs.get("content") or [])
    return answer


def test_100_mixed_requests(
    client: openai.OpenAI, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Sixteen at once; each is answered with the tokens and the text of `generate()` alone."""
    cases = make_cases()
    prompts = [tokenizer(c.text, add_special_tokens=not c.chat)["input_ids"] for c in cases]
    expected = [generate(hf_model, p, c.config()) for p, c in zip(prompts, cases, strict=True)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(
            pool.map(lambda case, prompt: ask(client, case, len(prompt)), cases, prompts)
        )
    for case, prompt, tokens, answer in zip(cases, prompts, expected, answers, strict=True):
        echoed = case.text if case.echo else ""
        assert answer.text == echoed + tokenizer.decode(tokens, skip_special_tokens=True), case
        assert answer.token_ids == ([] if case.echo else tokens), case
        positions = len(tokens) + (len(prompt) if case.echo else 0)
        assert answer.num_logprobs == (positions if case.logprobs else 0), case


def test_a_body_in_openai_terms_alone(
    client: openai.OpenAI, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """HF's defaults for sampling; OpenAI's for lengths: 16 tokens, or up to the context window."""
    text = prompt_texts(2)[1]
    ids = tokenizer(text)["input_ids"]
    for fields in (
        {},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.6, "seed": 5, "top_p": 0.9},
    ):
        config = GenerationConfig(max_new_tokens=16, do_sample=bool(fields), **fields)
        response = client.completions.create(
            model="tiny", prompt=text, extra_body={"return_token_ids": True, **fields}
        )
        assert response.choices[0].to_dict()["token_ids"] == generate(hf_model, ids, config)

    text = "value = [1, 2, 3]\n" * 180
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert 1900 < len(ids) < 2048
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": text}],
        extra_body={"return_token_ids": True},
    )
    config = GenerationConfig(max_new_tokens=2048 - len(ids))
    assert answer.choices[0].to_dict()["token_ids"] == generate(hf_model, ids, config)


SEVERAL: list[dict[str, Any]] = [
    {"do_sample": True, "seed": 3, "num_return_sequences": 3},
    {"temperature": 0.8, "seed": 3, "n": 2, "repetition_penalty": 1.2},
    {"num_beams": 3, "n": 2, "no_repeat_ngram_size": 3},
    {
        "num_beams": 2,
        "num_return_sequences": 2,
        "do_sample": True,
        "seed": 4,
        "length_penalty": 0.5,
    },
    {"guidance_scale": 2.0, "negative_prompt_ids": [5, 6, 7]},
    {"stop_strings": ["self", "\n\n"]},
    {"stop_strings": ["self", "("], "do_sample": True, "seed": 3, "num_return_sequences": 3},
    {"stop_strings": "n", "num_beams": 3, "num_return_sequences": 2},
    {"max_time": 0.0, "do_sample": True, "seed": 3, "num_return_sequences": 2},
    {"max_time": 0.0, "num_beams": 2},
]


@pytest.mark.parametrize("body", SEVERAL, ids=str)
def test_more_than_one_row(
    client: openai.OpenAI,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    body: dict[str, Any],
) -> None:
    """Several answers, beams, guidance, and HF's stop strings."""
    text = prompt_texts(6)[5]
    ids = tokenizer(text)["input_ids"]
    fields: dict[str, Any] = {"do_sample": "temperature" in body, **body}
    count = fields.pop("n", fields.get("num_return_sequences", 1))
    torch.manual_seed(fields.pop("seed", 0))
    if "negative_prompt_ids" in fields:
        fields["negative_prompt_ids"] = torch.tensor([fields["negative_prompt_ids"]])
    fields |= {"max_new_tokens": 20, "num_return_sequences": count, "tokenizer": tokenizer}
    with torch.inference_mode():
        rows = hf_model.generate(torch.tensor([ids]), **fields)[:, len(ids) :].tolist()
    response = client.completions.create(
        model="tiny",
        prompt=text,
        extra_body={"max_new_tokens": 20, "return_token_ids": True, **body},
    )
    assert [choice.index for choice in response.choices] == list(range(count))
    answers: dict[int, Any] = {
        choice.index: choice.to_dict()["token_ids"] for choice in response.choices
    }
    padding = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    for i, row in enumerate(rows):
        assert equal_to_the_end(answers[i], row, padding)
    if body.get("num_beams", 1) == 1:
        assert streamed_token_ids(client, text, body) == answers


def streamed_token_ids(
    client: openai.OpenAI, text: str, body: dict[str, Any]
) -> dict[int, list[Any]]:
    """Return the tokens of each answer of the same request as a stream."""
    streamed: dict[int, list[Any]] = {}
    for chunk in client.completions.create(
        model="tiny",
        prompt=text,
        stream=True,
        extra_body={"max_new_tokens": 20, "return_token_ids": True, **body},
    ):
        for choice in chunk.choices:
            fields: dict[str, Any] = choice.to_dict()
            streamed.setdefault(choice.index, []).extend(fields["token_ids"])
    return streamed


def test_beams_are_not_streamed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="Beams are not streamed"):
        client.completions.create(
            model="tiny", prompt="def", stream=True, extra_body={"num_beams": 2}
        )


@pytest.mark.parametrize("bias", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("tokens", [[300], [10, 11]], ids=str)
def test_sequence_biases_that_are_not_finite(
    server: str,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tokens: list[int],
    bias: float,
) -> None:
    """Transformers takes them: -Infinity bans the last token, the others make it the choice."""
    text = prompt_texts(1)[0]
    fields = {"sequence_bias": [[tokens, bias], [[10], 50.0]], "max_new_tokens": 8}
    body = {"model": "tiny", "prompt": text, "return_token_ids": True, **fields}
    status, answer = post(f"{server}/v1/completions", body)
    assert status == 200
    expected = generate(hf_model, tokenizer(text)["input_ids"], GenerationConfig(**fields))
    assert answer["choices"][0]["token_ids"] == expected


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_prompt_without_an_answer(client: openai.OpenAI, is_stream: bool) -> None:
    """Upstream generates a token for it, which is no part of the answer and is not counted."""
    body: dict[str, Any] = {"model": "tiny", "prompt": "def f(", "echo": True, "max_tokens": 0}
    body["extra_body"] = {"return_token_ids": True}
    if is_stream:
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        parts = [*client.completions.create(**body, stream=True, stream_options=options)]
    else:
        parts = [client.completions.create(**body)]
    assert all(part.usage and part.usage.completion_tokens == 0 for part in parts)
    assert all(part.usage.total_tokens == part.usage.prompt_tokens > 0 for part in parts)
    choices = [choice for part in parts for choice in part.choices]
    assert not any(choice.token_ids for choice in choices)
    plain = {**body, "extra_body": {}}
    assert client.completions.create(**plain).choices[0].text == "def f("
    assert client.completions.create(**{**plain, "max_tokens": 1}).usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1"):
        client.completions.create(**{**plain, "echo": False})
