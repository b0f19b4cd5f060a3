"""``vllm.entrypoints.llm`` and ``offline``: `generate()` calls, and the table of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.fork.checked_adapters import CheckedAdapters
from vllm.fork.processes import requests_left
from vllm.hf_compat.call.arguments import check_prompts
from vllm.hf_compat.call.generate_call import params_of_call
from vllm.hf_compat.frontend import accept_params
from vllm.hf_layers.report.report import parity_report

__all__ = ["accept_params", "leaving_nothing_behind", "params_of_call", "parity_report"]


def leaving_nothing_behind(run: Callable[..., Any]) -> Callable[..., Any]:
    """As `requests_left.leaving_nothing_behind`; adapters are checked before, and with hf_compat
    prompts, too.

    Raises:
        VLLMValidationError: see `check_prompts`; or an adapter cannot be served.
    """
    decorated = requests_left.leaving_nothing_behind(run)

    @wraps(run)
    def checked(llm: Any, *args: Any, **kwargs: Any) -> Any:
        if llm.input_processor.hf_compat is not None:
            check_prompts(kwargs.get("prompts"))
        given = kwargs.get("lora_request")
        for adapter in given if isinstance(given, Sequence) else [given]:
            refusal = CheckedAdapters.of(llm.llm_engine).refusal(adapter)
            if refusal is not None:
                raise VLLMValidationError(refusal)
        return decorated(llm, *args, **kwargs)

    return checked
