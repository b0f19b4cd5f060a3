"""The OpenAI server's completion endpoints, with HF's parameter names (`body.GenerationFields`).

With hf_compat the routes that take a ``CompletionRequest`` or a ``ChatCompletionRequest`` take a
subclass that has HF's fields too, so that they are checked, documented in ``/openapi.json`` and
never ignored. Without the flag nothing here is used.
"""

from __future__ import annotations

import functools
import inspect
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import model_validator

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import OpenAIBaseModel
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.body import LENGTHS, BodyFields, GenerationFields, attach_body
from vllm.sampling_params import SamplingParams


class HFRequestBody(GenerationFields, OpenAIBaseModel):
    """What both endpoints add to upstream's body; upstream's fields keep their meaning."""

    field_names: ClassVar[set[str] | None] = None  # upstream's cache of them is per class

    @model_validator(mode="before")
    @classmethod
    def _same_thing_once(cls, data: Any) -> Any:
        """Refuse a length or a number of answers that is said twice; ``n`` is HF's number."""
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        limits = {"max_completion_tokens", "max_tokens"} & given.keys() & cls.model_fields.keys()
        for length in LENGTHS:
            if length in given and limits:
                raise VLLMValidationError(
                    f"{length} and {min(limits)} both limit the answer: send one of the two.",
                    parameter=length,
                )
        if "num_return_sequences" not in given:
            return data
        number = given["num_return_sequences"]
        if given.get("n", number) != number:
            raise VLLMValidationError(
                "num_return_sequences and n are both the number of answers: send one of the two.",
                parameter="num_return_sequences",
            )
        return {**data, "n": number}

    @model_validator(mode="after")
    def _no_default_length(self) -> HFRequestBody:
        """OpenAI's default of ``max_tokens`` does not limit a request that has HF's length."""
        if self._has_length_of_hf():
            self.max_tokens = 1  # room for one token is all that is known before the prompt is
        return self

    def _has_length_of_hf(self) -> bool:
        return any(getattr(self, name) is not None for name in LENGTHS)

    def to_sampling_params(
        self, max_tokens: int, default_sampling_params: dict[str, Any] | None = None
    ) -> SamplingParams:
        """Return upstream's parameters, with HF's fields attached for `Frontend.finish`.

        Raises:
            VLLMValidationError: upstream's reason why they cannot be.
        """
        defaults = default_sampling_params or {}
        temperature = self.temperature
        if temperature is None:
            temperature = defaults.get("temperature", 1.0)
        upstream = self
        has_beams = (self.num_beams or 1) > 1
        if self.do_sample or self.num_return_sequences is not None or has_beams:
            # Upstream drops top_k and top_p of a greedy request, and refuses several answers.
            upstream = self.model_copy(update={"temperature": self.temperature or 1.0})
        params = super(HFRequestBody, upstream).to_sampling_params(
            None if self._has_length_of_hf() else max_tokens, defaults
        )
        if not (temperature if self.do_sample is None else self.do_sample):
            params.temperature = 0.0
        attach_body(params, self._fields_for_hf())
        return params

    def _fields_for_hf(self) -> BodyFields:
        fields = {name: getattr(self, name) for name in GenerationFields.model_fields}
        if self.do_sample:
            fields["temperature"] = self.temperature
        if "length_penalty" in self.model_fields_set:
            fields["length_penalty"] = self.length_penalty
        return BodyFields.model_construct(**fields)


class HFCompletionRequest(HFRequestBody, CompletionRequest):
    """Body of /v1/completions in hf_compat."""


class HFChatCompletionRequest(HFRequestBody, ChatCompletionRequest):
    """Body of /v1/chat/completions in hf_compat."""


_BODIES: dict[Any, type[HFRequestBody]] = {
    CompletionRequest: HFCompletionRequest,
    ChatCompletionRequest: HFChatCompletionRequest,
}

Endpoint = Callable[..., Awaitable[Any]]


def accept_hf_bodies(app: FastAPI, args: Namespace) -> None:
    """Give every route of `app` that takes upstream's body one that takes HF's names too.

    Args:
        app: the server, with all its routes.
        args: its command line; nothing happens without ``--hf-compat``.
    """
    if not getattr(args, "hf_compat", False):  # programs may build an app with fewer arguments
        return
    routes = app.router.routes
    for i, route in enumerate(routes):
        if isinstance(route, APIRoute) and (endpoint := _endpoint(route.endpoint)) is not None:
            app.router.add_api_route(
                route.path,
                endpoint,
                name=route.name,
                methods=route.methods,
                dependencies=route.dependencies,
                responses=route.responses,
                response_model=route.response_model,
            )
            routes[i] = routes.pop()


def _endpoint(upstream: Endpoint) -> Endpoint | None:
    """Return `upstream` with HF's body in its signature; None if it takes neither of the bodies."""
    signature = inspect.signature(upstream)
    parameter = signature.parameters.get("request")
    body = _BODIES.get(parameter.annotation) if parameter is not None else None
    if parameter is None or body is None:
        return None

    @functools.wraps(upstream)
    async def endpoint(request: Any, raw_request: Request) -> Any:
        if request.stream:
            _check_before_stream(request, raw_request)
        return await upstream(request, raw_request)

    parameters = {**signature.parameters, "request": parameter.replace(annotation=body)}
    endpoint.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(parameters.values())
    )
    return endpoint


def _check_before_stream(request: HFRequestBody, raw_request: Request) -> None:
    """Refuse as a bad request what the engine would refuse after the stream began with status 200.

    What depends on the prompt's length is left to the engine.

    Raises:
        VLLMValidationError: the refusal.
    """
    state = raw_request.app.state
    client = getattr(state, "engine_client", None)  # None if the server only renders prompts
    if client is None:
        return
    defaults = state.openai_serving_completion.default_sampling_params
    params = request.to_sampling_params(client.model_config.max_model_len, defaults)
    client.input_processor.hf_compat.check(params)
    client.input_processor.hf_compat.finish(params, prompt_len=1)
