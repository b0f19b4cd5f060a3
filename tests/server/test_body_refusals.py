"""Bodies that are refused, with the reason."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

import httpx
import openai
import pytest

from tests.server.requests import post

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
    ({"stream_interval": 1 << 70}, "stream_interval is a number of more than 64 bits"),
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
    ({"n": 3}, "set temperature, do_sample or num_beams"),
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


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": "\ud800"},
        {"bad_words": ["\udfff"]},
        {"request_id": "\ud800"},
        {"vllm_xargs": {"\ud800": 1}},
    ],
    ids=["stop", "bad_words", "request_id", "vllm_xargs"],
)
def test_half_of_a_pair_of_surrogates_is_a_bad_request(server: str, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "prompt": "ab", **fields}  # which the openai client refuses
    status, answer = post(f"{server}/v1/completions", body)
    assert status == 400
    assert "is no text in UTF-8: surrogates not allowed" in answer["error"]["message"]


@pytest.mark.parametrize("bias", [float("nan"), "NaN", "-nan"], ids=repr)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/invocations"])
def test_a_bias_that_is_no_number(server: str, path: str, bias: Any) -> None:
    """Upstream reads it as -100."""
    prompt: dict[str, Any] = {"messages": []} if "chat" in path else {"prompt": "ab"}
    body = {"model": "tiny", **prompt, "logit_bias": {"7": 1.0, "5": bias}}
    status, answer = post(f"{server}{path}", body)
    assert status == 400
    sentence = f"logit_bias of token 5 is {bias}, which is no number: give one from -100 to 100"
    assert answer["error"]["message"].startswith(sentence)


def test_an_infinite_bias_is_the_apis_greatest(client: openai.OpenAI) -> None:
    answers = [
        client.completions.create(
            model="tiny", prompt="def", max_tokens=4, extra_body={"logit_bias": {"300": bias}}
        )
        for bias in ("Infinity", 100, "-Infinity", -100)
    ]
    most, hundred, least, minus_hundred = (one.choices[0].text for one in answers)
    assert most == hundred
    assert least == minus_hundred
    assert most != least


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
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [5] * 2000}),
        ("/v1/chat/completions/batch", {"messages": [[5] * 2000]}),
        ("/v1/responses", {"input": [5] * 2000}),
        ("/v1/messages", {"max_tokens": 2, "messages": [5] * 2000}),
        ("/tokenize", {"messages": [5] * 2000}),
        ("/invocations", {"messages": [5] * 2000}),
    ],
)
def test_a_long_wrong_list_ends_at_its_first_entry(
    server: str, path: str, fields: dict[str, Any]
) -> None:
    """Each entry had eight errors or more, and a hundred thousand of them all memory."""
    status, answer = post(f"{server}{path}", {"model": "tiny", **fields})
    assert status == 400
    found = re.search(r"(\d+) validation error", json.dumps(answer))
    assert found is None or int(found[1]) < 300


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": [{"role": "user", "content": "a"}] * 16_384}),
        ("/v1/chat/completions", {"messages": [], "chat_template_kwargs": {"a": [[]] * 16_384}}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(131_073)}}),
        ("/tokenize", {"prompt": "a", "x": [{}] * 16_384}),
        ("/invocations", {"messages": [{}] * 16_384}),
    ],
)
def test_too_many_lists_and_objects(server: str, path: str, fields: dict[str, Any]) -> None:
    status, answer = post(f"{server}{path}", {"model": "tiny", **fields})
    assert status == 400
    assert "at most 16384 lists and objects" in answer["error"]["message"]
    assert "--max-body-parts" in answer["error"]["message"]


@pytest.mark.parametrize("name", ["kv_transfer_params", "chat_template_kwargs", "vllm_xargs"])
def test_lists_and_objects_in_each_other(server: str, name: str) -> None:
    """What pickles them for a worker would end the engine."""
    value: Any = 1
    for _ in range(500):
        value = {"a": value}
    status, answer = post(f"{server}/v1/completions", {"model": "tiny", "prompt": "x", name: value})
    assert status == 400
    assert "at most 128 lists and objects in each other" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "x", "n": 1025, "do_sample": True}),
        ("/v1/completions", {"prompt": ["x"] * 513, "num_return_sequences": 2}),
        ("/v1/completions", {"prompt": [[5]] * 342, "n": 3, "do_sample": True}),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "x"}]] * 1025}),
        ("/generative_scoring", {"query": "x", "items": ["y"] * 1025, "label_token_ids": [1]}),
    ],
    ids=["n", "texts and n", "tokens and n", "chats", "items"],
)
def test_too_many_answers(server: str, path: str, fields: dict[str, Any]) -> None:
    status, answer = post(f"{server}{path}", {"model": "tiny", **fields})
    assert status == 400
    assert "the number of answers may be at most 1024" in answer["error"]["message"]


def test_the_best_of_more_answers(server: str) -> None:
    body = {"model": "tiny", "prompt": "x", "n": 2, "do_sample": True, "max_tokens": 1}
    status, answer = post(f"{server}/v1/completions", {**body, "best_of": 4})
    assert status == 400
    assert "best_of would choose among more answers than n" in answer["error"]["message"]
    assert post(f"{server}/v1/completions", {**body, "best_of": 2})[0] == 200


@pytest.mark.parametrize("kind", ["application/JSON", "APPLICATION/json; charset=UTF-8"])
def test_json_in_letters_of_any_case(server: str, kind: str) -> None:
    """FastAPI reads such a body, which then has to pass all checks."""
    request = urllib.request.Request(
        f"{server}/v1/completions",
        json.dumps({"model": "tiny", "prompt": "x", "num_beam": 3}).encode(),
        {"Content-Type": kind},
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request)
    assert "did you mean num_beams" in json.loads(error.value.read())["error"]["message"]


def test_a_long_prompt_of_tokens_is_no_structure(server: str) -> None:
    body = {"model": "tiny", "prompt": [[5] * 2000] * 2, "max_tokens": 1}
    assert post(f"{server}/v1/completions", body)[0] == 200


@pytest.mark.parametrize("is_announced", [True, False], ids=["length", "chunks"])
@pytest.mark.parametrize("path", ["/v1/completions", "/invocations", "/tokenize"])
def test_too_many_bytes(server: str, path: str, is_announced: bool) -> None:
    """In chunks nobody says beforehand how many there will be."""
    body = b'{"model": "tiny", "prompt": "' + b"a" * (1 << 24) + b'"}'
    chunks = [body[i : i + (1 << 20)] for i in range(0, len(body), 1 << 20)]
    answer = httpx.post(
        f"{server}{path}",
        content=body if is_announced else iter(chunks),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    assert answer.status_code == 400
    assert "at most 16777216 bytes" in answer.text
    assert "--max-body-bytes" in answer.text


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/invocations", "/inference/v1/abort_requests", "/tokenize"]
)
@pytest.mark.parametrize("body", ["5", "[]", "null", "true"])
def test_a_body_that_is_no_object(server: str, path: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server}{path}", content=body, headers=headers)
    assert answer.status_code == 400
    assert f"must be a JSON object with names and values, and is {body}." in answer.text


@pytest.mark.parametrize("messages", ["5", "null", '"Hello"', '{"role": "user"}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_messages_that_are_no_list(server: str, path: str, messages: str) -> None:
    headers = {"Content-Type": "application/json"}
    body = f'{{"model": "tiny", "messages": {messages}}}'
    answer = httpx.post(f"{server}{path}", content=body, headers=headers)
    assert answer.status_code == 400
    assert json.loads(answer.text)["error"]["message"].startswith(
        f"messages must be a list, and is {messages}."
    )
