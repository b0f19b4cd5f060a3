"""The schema of bodies with HF's fields."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from fastapi import FastAPI
from transformers import GenerationConfig

from tests.engines import MODEL
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.completion.api_router import create_completion
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.hf_compat.call.support import LOGITS_FIELDS, REFUSED_FIELDS, SAMPLING_FIELDS
from vllm.hf_compat.server.body import GenerationFields
from vllm.utils.argparse_utils import FlexibleArgumentParser


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


@pytest.mark.parametrize("flag", ["--max-num-beams=8", "--no-strict-body"])
def test_flags_of_bodies_are_refused_without_the_flag(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command line, before anything is loaded, and for an app of a program's own."""
    with pytest.raises(SystemExit) as end:
        app_with(flag)
    assert end.value.code == 2
    assert "is about the bodies of --hf-compat: add that flag" in capsys.readouterr().err
    app_with("--hf-compat", flag)


@pytest.mark.parametrize("given", [{"max_num_beams": 8}, {"strict_body": False}], ids=str)
def test_a_programs_app_refuses_them_too(given: dict[str, Any]) -> None:
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", str(MODEL)])
    for name, value in given.items():
        setattr(args, name, value)
    with pytest.raises(ValueError, match="is about the bodies of --hf-compat: add that flag"):
        build_app(args, ("generate",))
