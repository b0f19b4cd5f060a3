"""Parameters whose structured outputs are checked without a grammar's conversion.

Upstream converts a grammar while it looks at a request, which is on the event loop of a server.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, check_json_nesting

if TYPE_CHECKING:
    from vllm.config import ModelConfig, StructuredOutputsConfig
    from vllm.tokenizers import TokenizerLike


def is_tried(config: Any) -> bool:
    """Whether grammars are tried before an engine with this ``StructuredOutputsConfig`` compiles
    them: the other backends build theirs while they go.
    """
    return config.backend in ("auto", "xgrammar")


class StructuredParams(SamplingParams, kw_only=True):  # type: ignore[call-arg]
    """A ``SamplingParams`` that leaves the conversion of its grammar to the engine, if it is looked
    at on an event loop; a program without one reads what is wrong at once.
    """

    def _validate_structured_outputs(
        self,
        model_config: ModelConfig,
        structured_outputs_config: StructuredOutputsConfig | None,
        tokenizer: TokenizerLike | None,
    ) -> None:
        structured, config = self.structured_outputs, structured_outputs_config
        if (
            structured is None
            or config is None
            or tokenizer is None
            or model_config.is_diffusion
            or not is_tried(config)
            or not _is_on_event_loop()
        ):
            super()._validate_structured_outputs(model_config, config, tokenizer)
            return
        from vllm.v1.structured_output.utils import choice_as_grammar  # it imports the server

        _check(structured)
        structured._backend, structured._backend_was_auto = "xgrammar", config.backend == "auto"
        if structured.choice:
            structured.grammar = choice_as_grammar(structured.choice)
            structured.choice = None


def leave_grammars_to_the_engine(params: SamplingParams) -> SamplingParams:
    """Return `params`, or a copy that is a `StructuredParams` if there is a grammar."""
    if params.structured_outputs is None or isinstance(params, StructuredParams):
        return params
    params = copy.copy(params)
    params.__class__ = StructuredParams  # the same fields, and another check of one
    return params


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _check(structured: Any) -> None:
    """Refuse what no compiler is to see.

    Raises:
        VLLMValidationError: names the field.
    """
    for name in ("choice", "json", "grammar", "structural_tag"):
        value = getattr(structured, name)
        if value == [] or (isinstance(value, str) and not value.strip()):
            raise VLLMValidationError(f"structured_outputs.{name} is empty.", parameter=name)
    if structured.json_object is False:
        raise VLLMValidationError(
            "structured_outputs.json_object is false: say true, or leave it out."
        )
    if "\x00" in (structured.regex or ""):
        raise VLLMValidationError("structured_outputs.regex may not have the character NUL.")
    check_json_nesting(structured.json)
    check_json_nesting(structured.structural_tag, structural_tag=True)
