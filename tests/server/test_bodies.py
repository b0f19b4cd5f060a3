"""Hugging Face's names in the bodies of requests: answered, refused and documented as HF's."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import torch
from fastapi import FastAPI
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.engines import MODEL
from tests.reference import equal_to_the_end, generate, prompt_texts
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.completion.api_router import create_completion
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.hf_compat.body import GenerationFields
from vllm.hf_compat.support import LOGITS_FIELDS, REFUSED_FIELDS, SAMPLING_FIELDS
from vllm.utils.argparse_utils import FlexibleArgumentParser

NUM_REQUESTS = 100

# --- answers -------------------------------------------------------------------------------------
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
        eos = case.body.get("eos_token_id", tokenizer.eos_token_id)
        ended = tokens[-1] in (eos if isinstance(eos, list) else [eos])
        shown = tokens[:-1] if ended else tokens  # vLLM never shows the text of an EOS token
        assert answer.text == echoed + tokenizer.decode(shown, skip_special_tokens=True), case
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


# --- refusals ------------------------------------------------------------------------------------
REFUSED: list[tuple[dict[str, Any], str]] = [
    # ours
    ({"num_beams": 2, "stop": ["x"]}, "stop is not available with num_beams=2"),
    ({"num_beams": 33}, "num_beams may be at most 32, and is 33 here: .* --max-num-beams"),
    ({"no_repeat_ngram_size": 1025}, "at most 1024, .* higher --max-ngram-size"),
    ({"encoder_no_repeat_ngram_size": 10**9}, "at most 1024, .* higher --max-ngram-size"),
    ({"bad_words_ids": [[5]] * 1025}, "entries of bad_words_ids .* --max-token-sequences"),
    ({"sequence_bias": [[[5], 1.0]] * 1025}, "entries of sequence_bias .* --max-token-sequences"),
    ({"suppress_tokens": [5] * 65_537}, "at most 65536, and is 65537 .* --max-listed-tokens"),
    ({"stop_strings": ["a"] * 65}, "number of stop_strings .* at most 64, .* --max-stop-strings"),
    ({"stop_strings": "a" * 1025}, "length of stop_strings .* 1024, .* --max-stop-string-length"),
    ({"vllm_xargs": {"kv_transfer_params": "x"}}, "send it as the field kv_transfer_params"),
    ({"vllm_xargs": {"pickled": "x"}}, "vllm_xargs.pickled is not for clients"),
    ({"vllm_xargs": {"hf_compat": "x"}}, "vllm_xargs.hf_compat is not for clients"),
    ({"exponential_decay_length_penalty": [-(2**63), 1.5]}, "OverflowError"),
    ({"prompt_lookup_num_tokens": 3, "do_sample": True}, "draws of assisted sampling"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "does not reproduce penalty_alpha=0.6"),
    ({"dola_layers": "high"}, "asks for dola_generation"),
    (
        {"guidance_scale": 2.0, "negative_prompt_ids": [9999]},
        "negative_prompt_ids names token 9999",
    ),
    ({"guidance_scale": 2.0, "num_beams": 2}, "guidance_scale is not available with num_beams=2"),
    ({"token_healing": True}, "does not reproduce token_healing=True"),
    ({"use_cache": False}, "does not reproduce use_cache=False"),
    ({"cache_implementation": "static"}, "does not reproduce cache_implementation='static'"),
    ({"prefill_chunk_size": 2}, "does not reproduce prefill_chunk_size=2"),
    ({"output_scores": True}, "output_scores has no place in an OpenAI answer"),
    ({"suppress_tokens": [3], "bad_words_ids": [[9999]]}, "bad_words_ids names token 9999"),
    ({"max_new_tokens": 8, "max_tokens": 8}, "max_new_tokens and max_tokens both limit"),
    ({"max_length": 8, "max_tokens": 8}, "max_length and max_tokens both limit"),
    ({"num_return_sequences": 2, "n": 3}, "num_return_sequences and n are both"),
    ({"max_new_tokens": 2048}, "exceed max_model_len=2048"),
    (
        {"max_new_tokens": 4, "min_tokens": 6},
        "min_tokens must be less than or equal to max_tokens=4",
    ),
    ({"vllm_xargs": {"generation_config": 5}}, "generation_config: Input should be"),
    # HF's
    ({"max_new_tokens": 0}, "`max_new_tokens` must be greater than 0"),
    ({"max_length": 1}, "max_length=1 counts them"),
    ({"num_return_sequences": 2}, "Greedy methods .* do not support `num_return_sequences`"),
    ({"do_sample": True, "temperature": 0.0}, "strictly positive float"),
    ({"do_sample": True, "top_h": 2.0}, r"range \(0, 1\]"),
    ({"suppress_tokens": [5], "forced_eos_token_id": 5}, "Every token in `forced_eos_token_id`"),
    ({"encoder_repetition_penalty": -1.0}, "strictly positive float"),
    ({"watermarking_config": {"context_width": 0}}, "context_width"),
    # the types'
    ({"no_repeat_ngram_size": "3"}, "should be a valid integer"),
    ({"do_sample": 1}, "should be a valid boolean"),
    ({"typical_p": "0.5"}, "should be a valid number"),
    ({"suppress_tokens": [1, None]}, "should be a valid integer"),
    ({"suppress_tokens": [2**63]}, "should be less than or equal to 9223372036854775807"),
    ({"early_stopping": "soon"}, "should be 'never'"),
    ({"watermarking_config": {"keys": [1]}}, "Extra inputs are not permitted"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("fields", "reason"), REFUSED, ids=lambda value: str(value)[:50])
def test_refusals_are_bad_requests_with_the_reason(
    client: openai.OpenAI, fields: dict[str, Any], reason: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        client.completions.create(model="tiny", prompt="def", stream=stream, extra_body=fields)
    with pytest.raises(openai.BadRequestError, match=reason):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "def"}],
            stream=stream,
            extra_body=fields,
        )


ENDLESS = ['root ::= root "a"', "root ::= a\na ::= b\nb ::= a", 'root ::= "a" b\nb ::= b']


def test_the_first_fault_of_a_list_is_enough(server: str) -> None:
    """A hundred thousand of them were an answer of many megabytes."""
    for name in ("suppress_tokens", "bad_words_ids", "sequence_bias", "stop_strings"):
        body = {"model": "tiny", "prompt": "x", name: [True] * 1000}
        request = urllib.request.Request(
            f"{server}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request)
        assert error.value.code == 400
        assert len(error.value.read()) < 2000


@pytest.mark.parametrize("grammar", ENDLESS)
def test_a_grammar_without_an_end_is_a_bad_request(client: openai.OpenAI, grammar: str) -> None:
    """It is found out when no token is left, where a stream has begun."""
    body = {"structured_outputs": {"grammar": grammar}}
    with pytest.raises(openai.BadRequestError, match="No token continues what structured_outputs"):
        client.completions.create(model="tiny", prompt="def", extra_body=body)
    stream = client.completions.create(model="tiny", prompt="def", stream=True, extra_body=body)
    with pytest.raises(openai.APIError, match="No token continues what structured_outputs"):
        list(stream)


def test_half_of_a_pair_of_surrogates_is_a_bad_request(server: str) -> None:
    body = {"model": "tiny", "prompt": "ab", "stop": "\ud800"}  # which the openai client refuses
    status, answer = post(f"{server}/v1/completions", body)
    assert status == 400
    assert "is no text in UTF-8: surrogates not allowed" in answer["error"]["message"]


def test_a_request_that_generate_fails_on_is_a_bad_one(client: openai.OpenAI) -> None:
    body = {"suppress_tokens": list(range(4096)), "do_sample": True, "n": 2, "max_new_tokens": 3}
    with pytest.raises(openai.BadRequestError, match="probabilit"):
        client.completions.create(model="tiny", prompt="def", extra_body=body)


@pytest.mark.parametrize(
    ("extra_args", "reason"),
    [
        ({"hf_compat": {"pickled": "gA=="}}, "extra_args.hf_compat is not for clients"),
        ({"pickled": "gA=="}, "extra_args.pickled is not for clients"),
        ({"kv_transfer_params": "x"}, "extra_args.kv_transfer_params must be an object"),
        ({"generation_config": {"num_beams": 33}}, "num_beams may be at most 32"),
        ({"generation_config": {"pickled": "gA=="}}, "generation_config.pickled: Extra inputs"),
    ],
    ids=str,
)
def test_what_clients_may_not_write(server: str, extra_args: dict[str, Any], reason: str) -> None:
    body = {"token_ids": [5], "sampling_params": {"max_tokens": 2, "extra_args": extra_args}}
    status, answer = post(f"{server}/inference/v1/generate", body)
    assert status == 400
    assert reason in answer["error"]["message"]


def test_a_stream_whose_prompt_is_too_long_ends_with_the_reason(client: openai.OpenAI) -> None:
    """It depends on the tokens of the prompt, which are counted after the stream has begun."""
    stream = client.completions.create(
        model="tiny", prompt="def f(x):", stream=True, extra_body={"max_length": 3}
    )
    with pytest.raises(openai.APIError, match="max_length=3 counts them"):
        list(stream)


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


def post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Return status and answer."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


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


# --- the schema ----------------------------------------------------------------------------------
def app_with(*flags: str) -> FastAPI:
    """Return the server's app without an engine."""
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", str(MODEL), *flags])
    return build_app(args, ("generate",))


def test_schema_documents_every_field(server: str) -> None:
    with urllib.request.urlopen(f"{server}/openapi.json", timeout=60) as response:
        schema = json.load(response)
    defaults = {**GenerationConfig._get_default_generation_params(), "max_length": None}
    for path, name in [
        ("/v1/completions", "HFCompletionRequest"),
        ("/v1/chat/completions", "HFChatCompletionRequest"),
    ]:
        content = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["schema"]["$ref"].endswith(f"/{name}")
        properties = schema["components"]["schemas"][name]["properties"]
        for field in GenerationFields.model_fields:
            documented = properties[field]
            assert documented["description"].endswith("."), field
            assert documented.get("default") == defaults.get(field), field
            assert {"type": "null"} in documented["anyOf"], field
            assert len(documented["anyOf"]) > 1, field
    operations = [
        operation["operationId"] for p in schema["paths"].values() for operation in p.values()
    ]
    assert len(set(operations)) == len(operations)


def test_every_field_that_is_honoured_or_refused_has_a_name() -> None:
    names = {*GenerationFields.model_fields, *CompletionRequest.model_fields}
    assert {*LOGITS_FIELDS, *SAMPLING_FIELDS, *REFUSED_FIELDS} <= names
    assert not set(GenerationFields.model_fields) & set(CompletionRequest.model_fields)


def test_without_the_flag_the_server_is_upstreams() -> None:
    app = app_with()
    assert "HFCompletionRequest" not in app.openapi()["components"]["schemas"]
    endpoints = {getattr(route, "endpoint", None) for route in app.routes}
    assert {create_completion, create_chat_completion} <= endpoints


def test_the_flag_changes_the_bodies_alone() -> None:
    upstream, ours = (app.openapi() for app in (app_with(), app_with("--hf-compat")))
    text = json.dumps(ours["paths"], sort_keys=True)
    assert text.count("HFCompletionRequest") == text.count("HFChatCompletionRequest") == 1
    assert text.replace("/HF", "/") == json.dumps(upstream["paths"], sort_keys=True)
