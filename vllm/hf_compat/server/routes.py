"""The server's routes that generate, with HF's names in their bodies: taken, or refused.

With hf_compat a route whose body is a completion or a chat gets a body with HF's fields
(`openai`). Every other route that generates refuses them, and all refuse names that nobody knows
(`field_names`) unless the server runs with ``--no-strict-body``.
"""

from __future__ import annotations

import functools
import inspect
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args, get_origin

from anthropic.types import message_create_params as anthropic
from anthropic.types.beta import message_create_params as anthropic_beta
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from openai.types import completion_create_params as openai_completion
from openai.types.audio import transcription_create_params, translation_create_params
from openai.types.chat import completion_create_params as openai_chat
from openai.types.responses import response_create_params as openai_responses
from pydantic import BaseModel, TypeAdapter, ValidationError

from vllm.entrypoints.openai.chat_completion.protocol import (
    BatchChatCompletionRequest,
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.server_flags import ServerFlags
from vllm.fork.requests.json_bodies import has_json
from vllm.hf_compat.receipts.wishes import wish_for_receipts
from vllm.hf_compat.server.body_bytes import LimitedBodies
from vllm.hf_compat.server.body_limits import check_body
from vllm.hf_compat.server.early_check import check_early, spare_the_loop
from vllm.hf_compat.server.echoed_prompts import without_generation
from vllm.hf_compat.server.field_names import Schema, check_names
from vllm.hf_compat.server.first_error import bound_validation, hasten
from vllm.hf_compat.server.openai import (
    HFBatchChatCompletionRequest,
    HFChatCompletionRequest,
    HFCompletionRequest,
    HFNames,
)
from vllm.hf_compat.server.receipt_answers import wants_receipts, with_receipts

BODIES: dict[Any, type[HFNames]] = {
    CompletionRequest: HFCompletionRequest,
    ChatCompletionRequest: HFChatCompletionRequest,
    BatchChatCompletionRequest: HFBatchChatCompletionRequest,
}
"""What takes the place of upstream's bodies."""

_COMPLETION = (openai_completion.CompletionCreateParamsStreaming,)
_CHAT = (openai_chat.CompletionCreateParamsStreaming,)
_RESPONSES = (openai_responses.ResponseCreateParamsStreaming,)
_MESSAGES = (
    anthropic.MessageCreateParamsStreaming,
    anthropic_beta.MessageCreateParamsStreaming,
)
APIS: dict[str, tuple[Any, ...]] = {
    "/v1/completions": _COMPLETION,
    "/v1/completions/render": _COMPLETION,
    "/v1/chat/completions": _CHAT,
    "/v1/chat/completions/render": _CHAT,
    # It takes what a chat takes, but not as fields of its own.
    "/v1/chat/completions/batch": (*_CHAT, HFChatCompletionRequest),
    "/v1/responses": _RESPONSES,
    "/v1/responses/render": _RESPONSES,
    "/v1/messages": _MESSAGES,
    "/v1/messages/render": _MESSAGES,
    "/cohere/v2/chat": (),
    "/cohere/v2/chat/render": (),
    "/v1/audio/transcriptions": (transcription_create_params.TranscriptionCreateParamsStreaming,),
    "/v1/audio/translations": (translation_create_params.TranslationCreateParams,),
    "/generative_scoring": (),
    "/v1/systemone": (),
    "/inference/v1/generate": (),
}
"""The routes that generate, and what the API that each speaks says about its body, beside vLLM's
class; /invocations passes bodies on to the first two of /v1 (`invocation_types`)."""

_INVOKED = {
    CompletionRequest: ("/v1/completions", "prompt"),
    ChatCompletionRequest: ("/v1/chat/completions", "messages"),
}
"""The bodies of /invocations: the route whose they are, and the field by which they are known."""

Endpoint = Callable[..., Awaitable[Any]]
Invocation = tuple[Any, Endpoint]


def accept_hf_bodies(app: FastAPI, args: Namespace) -> None:
    """Give the routes of `app` that generate bodies with HF's names, or let them refuse these.

    Args:
        app: the server, with all its routes.
        args: its command line; nothing happens without ``--hf-compat``.

    Raises:
        ValueError: it has flags of bodies that only ``--hf-compat`` has.
    """
    flags = ServerFlags.of(args)
    flags.check()
    if not flags.hf_compat:
        return
    routes = app.router.routes
    for i, route in enumerate(routes):
        if isinstance(route, APIRoute) and route.path in APIS and route.body_field is not None:
            app.router.add_api_route(
                route.path,
                endpoint_for(route.path, route.endpoint, flags),
                name=route.name,
                methods=route.methods,
                dependencies=route.dependencies,
                responses=route.responses,
                response_model=route.response_model,
            )
            routes[i] = routes.pop()
    for route in routes:
        if isinstance(route, APIRoute):
            bound_validation(route, flags)
    app.add_middleware(LimitedBodies, limit=flags.max_body_bytes)
    spare_the_loop()


def endpoint_for(path: str, upstream: Endpoint, flags: ServerFlags) -> Endpoint:
    """Return `upstream` with a check of the body, and with HF's body if it can have one.

    Args:
        path: of a route in `APIS`.
        upstream: takes a ``request``, which is the body, and the ``raw_request``.
        flags: of the server.
    """
    signature = inspect.signature(upstream)
    parameter = signature.parameters["request"]
    body = BODIES.get(parameter.annotation, parameter.annotation)
    schema = Schema.of(_classes(body), APIS[path])

    @functools.wraps(upstream)
    async def endpoint(request: Any, raw_request: Request) -> Any:
        sent = await _sent(raw_request)
        check_names(sent, schema, path, is_strict=flags.strict_body)
        check_body(sent, flags)
        # A stream begins when this function has ended, in the same context.
        book = wish_for_receipts(wants_receipts(request, path, flags))
        try:
            await check_early(request, raw_request)
            answer = await upstream(request=request, raw_request=raw_request)
            answer = without_generation(answer, request)
            return answer if book is None else with_receipts(answer, book)
        finally:
            if book is not None:
                book.close()

    parameters = {**signature.parameters, "request": parameter.replace(annotation=body)}
    endpoint.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(parameters.values())
    )
    return endpoint


def invocation_types(upstream: list[Invocation], raw_request: Request) -> list[Invocation]:
    """Return what /invocations tries a body on, in order (``INVOCATION_TYPES`` of the server).

    Args:
        upstream: pairs of what validates a body and of the endpoint that takes it then.
        raw_request: of a server; `upstream` comes back unchanged if it has no ``--hf-compat``.
    """
    flags = ServerFlags.of(raw_request.app.state.args)
    if not flags.hf_compat:
        return upstream
    return [
        _invocation(validator, endpoint, flags)
        if validator._type in _INVOKED
        else (validator, endpoint)
        for validator, endpoint in upstream
    ]


@functools.cache
def _invocation(validator: Any, endpoint: Endpoint, flags: ServerFlags) -> Invocation:
    path, key = _INVOKED[validator._type]
    return _OwnBodies(BODIES[validator._type], key), endpoint_for(path, endpoint, flags)


class _OwnBodies:
    """A ``TypeAdapter`` that says what is wrong with a body of its own kind, where upstream's would
    pass it on, and the client reads what kinds there are.

    Args:
        kind: of the bodies.
        key: a field that makes a body one of this kind.
    """

    def __init__(self, kind: type[HFNames], key: str) -> None:
        self._type = kind  # upstream's name, which it reads
        self._key = key

    def validate_python(self, body: Any) -> HFNames:
        """Return the body, as ``TypeAdapter.validate_python``.

        Raises:
            VLLMValidationError: what is wrong with it.
            ValidationError: it is of another kind.
        """
        if isinstance(body, dict) and self._key in body:
            return validated(self._type, body)
        return self._type.model_validate(body)


def validated(kind: type[HFNames], body: Any) -> HFNames:
    """Return a body of this kind.

    Raises:
        VLLMValidationError: in one sentence what is wrong with it.
    """
    try:
        return _adapter(kind).validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"][:1]))
        raise VLLMValidationError(f"{name}: {first['msg']}.", parameter=name) from None


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[HFNames]:
    return hasten(TypeAdapter(kind))


def _classes(annotation: Any) -> tuple[type[BaseModel], ...]:
    """Return the classes of a body, which may be a union, or be annotated as a form."""
    arms = get_args(annotation) if get_origin(annotation) is not None else (annotation,)
    return tuple(arm for arm in arms if inspect.isclass(arm) and issubclass(arm, BaseModel))


async def _sent(raw_request: Request) -> Mapping[str, Any]:
    """Return the body as it came, which the server has read already and kept."""
    if has_json(raw_request):
        return await raw_request.json()
    return dict(await raw_request.form())
