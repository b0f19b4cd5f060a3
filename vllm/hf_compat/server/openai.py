"""The bodies of the OpenAI server's completion endpoints, with HF's names (`GenerationFields`).

With hf_compat the routes that take upstream's bodies take these subclasses (`routes`), so that HF's
fields are checked, documented in ``/openapi.json`` and never ignored.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from vllm.entrypoints.openai.chat_completion.protocol import (
    BatchChatCompletionRequest,
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import OpenAIBaseModel
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.display import SAMPLING_EPS
from vllm.hf_compat.server.body import LENGTHS, BodyFields, Bool, GenerationFields, attach_body
from vllm.renderers.chat_utils import ChatCompletionMessageParam
from vllm.sampling_params import SamplingParams


class HFNames(GenerationFields, OpenAIBaseModel):
    """HF's fields in a body that has upstream's too, which keep their meaning."""

    field_names: ClassVar[set[str] | None] = None  # upstream's cache of them is per class

    receipt: Bool | None = Field(
        default=None,
        description="Whether each answer has a receipt, which `vllm audit` checks: of a server "
        "with --receipts. It is none of HF's fields.",
    )

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
        number = given.get("num_return_sequences", given.get("n", 1))
        if given.get("best_of", number) != number:
            raise VLLMValidationError(
                "best_of would choose among more answers than n, which is not done here: leave it "
                "out.",
                parameter="best_of",
            )
        if "num_return_sequences" not in given:
            return data
        if given.get("n", number) != number:
            raise VLLMValidationError(
                "num_return_sequences and n are both the number of answers: send one of the two.",
                parameter="num_return_sequences",
            )
        return {**data, "n": number}


class HFRequestBody(HFNames):
    """What the body of one request adds to `HFNames`: its parameters."""

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
            VLLMValidationError: upstream's reason why they cannot be, or they ask for several
                answers of greedy search without a word of it.
        """
        defaults = default_sampling_params or {}
        temperature = self.temperature
        if temperature is None:
            temperature = defaults.get("temperature", 1.0)
        upstream = self
        has_beams = (self.num_beams or 1) > 1
        says_how = has_beams or self.do_sample is not None or self.temperature is not None
        asks_by_openai = (self.n or 1) > 1 and self.num_return_sequences is None
        if asks_by_openai and temperature < SAMPLING_EPS and not says_how:
            raise VLLMValidationError(
                f"n={self.n} asks for several answers, and greedy search, which is Hugging Face's "
                "default for this model, has one: set temperature, do_sample or num_beams.",
                parameter="n",
            )
        if self.do_sample or self.num_return_sequences is not None or has_beams:
            # Upstream drops top_k and top_p of a greedy request, and refuses several answers.
            upstream = self.model_copy(update={"temperature": self.temperature or 1.0})
        params = super(HFRequestBody, upstream).to_sampling_params(
            None if self._has_length_of_hf() else max_tokens, defaults
        )
        if not (temperature if self.do_sample is None else self.do_sample):
            params.temperature = 0.0
        is_changed = self.do_sample is None and temperature not in (0, params.temperature)
        attach_body(params, self._fields_for_hf(temperature if is_changed else None))
        return params

    def _fields_for_hf(self, temperature: float | None) -> BodyFields:
        """Return the fields that travel, with a temperature that upstream's have lost."""
        fields = {name: getattr(self, name) for name in GenerationFields.model_fields}
        fields["temperature"] = self.temperature if self.do_sample else temperature
        if "length_penalty" in self.model_fields_set:
            fields["length_penalty"] = self.length_penalty
        return BodyFields.model_construct(**fields)


class HFCompletionRequest(HFRequestBody, CompletionRequest):
    """Body of /v1/completions in hf_compat."""


class HFChatCompletionRequest(HFRequestBody, ChatCompletionRequest):
    """Body of /v1/chat/completions in hf_compat."""


class HFBatchChatCompletionRequest(HFNames, BatchChatCompletionRequest):
    """Body of /v1/chat/completions/batch in hf_compat, each of whose chats has the same fields."""

    def to_chat_completion_request(
        self, messages: list[ChatCompletionMessageParam]
    ) -> ChatCompletionRequest:
        """Return the request of one of the chats.

        Raises:
            VLLMValidationError: upstream's reason why it cannot be.
        """
        # Only what the client has set: upstream's defaults are not the client's words.
        fields = self.model_dump(exclude={"messages"}, exclude_unset=True)
        return HFChatCompletionRequest.model_validate({**fields, "messages": messages})
