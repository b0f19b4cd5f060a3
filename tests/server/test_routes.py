"""Every route of the installed vLLM that generates takes HF's names in its body, or refuses it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import BaseModel
from starlette.routing import Route, WebSocketRoute

from tests.engines import MODEL
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.fork.flags.server_flags import ServerFlags
from vllm.hf_compat.server.field_names import Schema, check_names
from vllm.hf_compat.server.routes import APIS, BODIES, endpoint_for
from vllm.tasks import GENERATION_TASKS
from vllm.utils.argparse_utils import FlexibleArgumentParser

CHAT = [{"role": "user", "content": "def"}]
TAKING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "def"},
    "/v1/completions/render": {"prompt": "def"},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/chat/completions/render": {"messages": CHAT},
    "/v1/chat/completions/batch": {"messages": [CHAT, CHAT]},
    "/invocations": {"prompt": "def"},
}
"""Routes that take HF's names, each with a body."""

REFUSING: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "def"},
    "/v1/responses/render": {"input": "def"},
    "/v1/messages": {"messages": CHAT, "max_tokens": 4},
    "/v1/messages/render": {"messages": CHAT, "max_tokens": 4},
    "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [5]},
    "/v1/systemone": {"state": "a", "questions": {"q": {"type": "yes_no"}}},
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {"max_tokens": 4}},
}
"""Likewise, routes that refuse them."""

FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
"""Routes that refuse them and whose body is a form."""

NOT_INSTALLED = ("/cohere/v2/chat", "/cohere/v2/chat/render")
"""Routes that are there if the package cohere is: vLLM's requirements do not have it."""

NOT_GENERATING = {
    # counting, turning text into tokens and back
    "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/chat/completions/derender",
    "/v1/completions/derender",
    # requests that are there already, by their ids
    "/v1/responses/{response_id}/cancel", "/inference/v1/abort_requests", "/abort_requests",
    # the server itself
    "/ping", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/v1/load_lora_adapter", "/adapters",
    "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache",
    "/reset_mm_cache", "/reset_encoder_cache", "/pause", "/resume", "/release_kv_cache_memory",
    # weights
    "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update",
    "/start_draft_weight_update", "/update_weights", "/finish_weight_update", "/weight_checker",
    "/update_weight_version",
    # audio over a web socket, whose messages have no parameters of generation
    "/v1/realtime",
}  # fmt: skip


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    """An app of a server with hf_compat and with every route that vLLM can have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        flags = ["--model", str(MODEL), "--hf-compat", "--enable-scale-out"]
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
        yield build_app(args, GENERATION_TASKS)


def test_every_route_is_accounted_for(app: FastAPI) -> None:
    routes = {
        route.path
        for route in app.routes
        if isinstance(route, Route | WebSocketRoute)
        if not isinstance(route, Route) or "POST" in (route.methods or ())
    }
    known = {*TAKING, *REFUSING, *FORMS, *NOT_GENERATING}
    assert routes - known == set(), "does it generate? then add it to routes.APIS and above"
    assert known <= routes
    assert set(APIS) == {*TAKING, *REFUSING, *FORMS, *NOT_INSTALLED} - {"/invocations"}


def test_no_route_has_upstreams_body_where_there_is_one_of_hf(app: FastAPI) -> None:
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.body_field]
    kinds = {route.path: route.body_field.field_info.annotation for route in routes}  # type: ignore[union-attr]
    assert set(kinds.values()) >= set(BODIES.values())
    assert not set(kinds.values()) & set(BODIES)


@pytest.fixture(scope="module")
def browser(app: FastAPI) -> TestClient:
    return TestClient(app, raise_server_exceptions=False)


def sentence(browser: TestClient, path: str, body: dict[str, Any]) -> str:
    """Return why a body is refused."""
    response = browser.post(path, json={"model": "tiny", **body})
    assert response.status_code == 400, (path, response.status_code, response.text)
    text = response.json()["error"]["message"]
    assert "\n" not in text
    return str(text)


@pytest.mark.parametrize("path", REFUSING)
@pytest.mark.parametrize("name", ["max_new_tokens", "num_beams", "suppress_tokens", "do_sample"])
def test_other_routes_refuse_hf_names(browser: TestClient, path: str, name: str) -> None:
    text = sentence(browser, path, {**REFUSING[path], name: 2})
    assert f"{name} of Hugging Face's generate() is not honoured by {path}" in text


def test_names_in_sampling_params_are_looked_at(browser: TestClient) -> None:
    body = {"token_ids": [5], "sampling_params": {"num_beams": 2}}
    text = sentence(browser, "/inference/v1/generate", body)
    assert "sampling_params.num_beams of Hugging Face's generate() is not honoured" in text
    body = {"token_ids": [5], "sampling_params": {"max_token": 2}}
    text = sentence(browser, "/inference/v1/generate", body)
    assert "no field 'sampling_params.max_token': did you mean max_tokens?" in text


@pytest.mark.parametrize("path", FORMS)
def test_forms_refuse_hf_names(browser: TestClient, path: str) -> None:
    fields = {"model": "tiny", "num_beams": "2"}
    response = browser.post(path, data=fields, files={"file": ("a.wav", b"x")})
    assert response.status_code == 400
    assert "num_beams of Hugging Face's generate() is not honoured" in response.text


@pytest.mark.parametrize("path", [path for path in TAKING if path != "/invocations"])
def test_wrong_values_are_refused_where_names_are_taken(browser: TestClient, path: str) -> None:
    response = browser.post(path, json={"model": "tiny", **TAKING[path], "max_new_tokens": "x"})
    assert response.status_code == 400
    assert "valid integer" in response.text


class Body(BaseModel):
    model: str | None = None
    messages: list[Any]


def answers(path: str, flags: ServerFlags) -> TestClient:
    """Return a client of an app whose only route answers every body that it is given."""

    async def upstream(request: Body, raw_request: Request) -> dict[str, bool]:
        return {"reached": True}

    app = FastAPI()
    app.state.args = Namespace(log_error_stack=False)
    init_exception_handler(app)
    # As in a module without deferred annotations, which upstream's are.
    upstream.__annotations__ = {"request": Body, "raw_request": Request}
    app.post(path)(endpoint_for(path, upstream, flags))
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("path", NOT_INSTALLED)
def test_cohere_is_checked_if_it_is_there(path: str) -> None:
    browser = answers(path, ServerFlags(hf_compat=True))
    assert browser.post(path, json={"messages": []}).json() == {"reached": True}
    assert "num_beams of Hugging Face's" in sentence(
        browser, path, {"messages": [], "num_beams": 2}
    )


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--hf-compat"], 400), (["--hf-compat", "--no-strict-body"], 200)],
)
def test_no_strict_body(arguments: list[str], status: int) -> None:
    """It is upstream's tolerance, but for HF's own names."""
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", str(MODEL), *arguments])
    browser = answers("/v1/messages", ServerFlags.of(args))
    response = browser.post("/v1/messages", json={"messages": [], "num_beam": 2})
    assert response.status_code == status
    assert sentence(browser, "/v1/messages", {"messages": [], "num_beams": 2})


# --- names that nobody knows ----------------------------------------------------------------------
TYPING_ERRORS = [
    ({"num_beam": 2}, "no field 'num_beam': did you mean num_beams?"),
    ({"repetition_penality": 1.2}, "'repetition_penality': did you mean repetition_penalty?"),
    ({"maxNewTokens": 2}, "did you mean max_new_tokens?"),
    ({"top-k": 2}, "did you mean top_k?"),
    (
        {"stream": True, "stream_options": {"include_usages": True}},
        "'stream_options.include_usages': did you mean",
    ),
    (
        {"structured_outputs": {"regex": "a", "choices": ["a"]}},
        "'structured_outputs.choices': did you mean choice?",
    ),
    ({"guided_json": {}}, "vLLM has structured_outputs for it"),
    ({"extra_body": {"num_beams": 2}}, "its fields belong into the body itself"),
    ({"qqqqqqqq": None}, "no field 'qqqqqqqq': leave it out"),
    ({"q" * 9000: 1}, "no field '" + "q" * 60 + "...': leave it out"),
    ({"\u202e\U0001f600": 1}, r"no field '\\u202e\\U0001f600': leave it out"),
    ({"constraints": [1]}, "constraints of Hugging Face's generate() is not honoured"),
]


@pytest.mark.parametrize(("fields", "said"), TYPING_ERRORS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_typing_errors(browser: TestClient, path: str, fields: dict[str, Any], said: str) -> None:
    data = json.dumps({"model": "tiny", **TAKING[path], **fields})
    response = browser.post(path, content=data, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert said in response.json()["error"]["message"]


KINDS = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/messages": AnthropicMessagesRequest,
}
CLIENTS: dict[str, tuple[str, list[str]]] = {
    "lm-eval local-completions": ("/v1/completions", [
        "model", "prompt", "temperature", "max_tokens", "logprobs", "seed", "echo", "stop",
    ]),
    "lm-eval local-chat-completions": ("/v1/chat/completions", [
        "model", "messages", "max_tokens", "temperature", "stop", "seed", "max_completion_tokens",
    ]),
    "LangChain ChatOpenAI": ("/v1/chat/completions", [
        "model", "messages", "stream", "stream_options", "temperature", "top_p", "n", "seed",
        "frequency_penalty", "presence_penalty", "logprobs", "top_logprobs", "logit_bias", "stop",
        "max_tokens", "max_completion_tokens", "reasoning_effort", "verbosity", "service_tier",
        "store", "metadata", "tools", "tool_choice", "parallel_tool_calls", "response_format",
        "functions", "function_call", "modalities", "audio", "prediction", "user",
    ]),
    "LangChain OpenAI": ("/v1/completions", [
        "model", "prompt", "temperature", "top_p", "frequency_penalty", "presence_penalty", "n",
        "seed", "logprobs", "max_tokens", "best_of", "logit_bias", "stop", "stream", "user",
    ]),
    "LlamaIndex OpenAILike": ("/v1/chat/completions", [
        "model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stream",
        "stream_options", "logprobs", "top_logprobs", "tools", "tool_choice", "modalities", "audio",
        "reasoning_effort", "parallel_tool_calls", "response_format",
    ]),
    "LiteLLM hosted_vllm": ("/v1/chat/completions", [
        "model", "messages", "functions", "function_call", "temperature", "top_p", "n", "stream",
        "stream_options", "stop", "max_completion_tokens", "modalities", "prediction", "audio",
        "max_tokens", "presence_penalty", "frequency_penalty", "logit_bias", "user",
        "response_format", "seed", "tools", "tool_choice", "parallel_tool_calls", "logprobs",
        "top_logprobs", "reasoning_effort", "web_search_options", "service_tier",
    ]),
    "vllm bench serve": ("/v1/completions", [
        "model", "prompt", "repetition_penalty", "max_tokens", "logprobs", "stream",
        "stream_options", "ignore_eos", "temperature", "top_p", "top_k", "min_p",
    ]),
    "a generation_config.json": ("/v1/completions", [
        "bos_token_id", "pad_token_id", "eos_token_id", "do_sample", "max_length", "use_cache",
        "transformers_version", "_from_model_config", "return_dict_in_generate", "temperature",
    ]),
    "Claude Code": ("/v1/messages", [
        "model", "messages", "system", "max_tokens", "metadata", "tools", "tool_choice", "thinking",
        "stream", "temperature", "context_management", "output_config", "betas", "stop_sequences",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
def test_names_that_common_clients_send_are_known(client: str) -> None:
    path, names = CLIENTS[client]
    kind = KINDS[path]
    schema = Schema.of((BODIES.get(kind, kind),), APIS[path])
    check_names(dict.fromkeys(names), schema, path, is_strict=True)


def test_schemas_of_all_routes_know_what_upstream_knows(app: FastAPI) -> None:
    """A body that has every field of upstream's class has no unknown name."""
    checked = 0
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path in APIS:
            assert route.body_field is not None
            kind: Any = route.body_field.field_info.annotation
            schema = Schema.of((kind,), APIS[route.path])
            check_names(dict.fromkeys(kind.model_fields), schema, route.path, is_strict=True)
            checked += 1
    assert checked == len(APIS) - len(NOT_INSTALLED)
