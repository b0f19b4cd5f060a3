"""``vllm.entrypoints.llm`` and ``offline``: `generate()` calls, and the table of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.fork import requests_left
from vllm.hf_compat.call import params_of_call
from vllm.hf_compat.frontend import accept_params
from vllm.hf_compat.prompts import check_prompts
from vllm.parity_report.report import parity_report

__all__ = ["accept_params", "leaving_nothing_behind", "params_of_call", "parity_report"]


def leaving_nothing_behind(run: Callable[..., Any]) -> Callable[..., Any]:
    """As `requests_left.leaving_nothing_behind`; with hf_compat prompts are checked before.

    Raises:
        VLLMValidationError: see `check_prompts`.
    """
    decorated = requests_left.leaving_nothing_behind(run)

    @wraps(run)
    def checked(llm: Any, *args: Any, **kwargs: Any) -> Any:
        if llm.input_processor.hf_compat is not None:
            check_prompts(kwargs.get("prompts"))
        return decorated(llm, *args, **kwargs)

    return checked
