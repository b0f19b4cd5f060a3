"""What a flag refuses ends `vllm serve` with one sentence, in which flags are written as there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_COMMANDS = ("serve", "run-batch")
_ARGUMENT = re.compile(r'\b([a-z]\w*)=("[^"]*"|-?\d+(?:\.\d+)?|[A-Za-z_]\w*)')


def ending_commands(prepare: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate what refuses arguments of an engine: where a command of vLLM starts the engine, a
    ``ValueError`` is a ``SystemExit`` with the sentence alone.
    """

    @wraps(prepare)
    def prepare_or_end(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return prepare(*args, **kwargs)
        except ValueError as error:
            if sys.argv[1:2] and sys.argv[1] in _COMMANDS:
                sentence = as_on_command_line(str(error))
                raise SystemExit(f"vllm {sys.argv[1]}: {sentence}") from None
            raise

    return prepare_or_end


def as_on_command_line(sentence: str) -> str:
    """Return a sentence with arguments of engines as flags: ``--hf-compat`` for
    ``hf_compat=True``; what else looks so is left as it is.

    Args:
        sentence: with arguments as they are written in Python.
    """
    from vllm.engine.arg_utils import EngineArgs

    names = {field.name for field in fields(EngineArgs)}

    def flag(match: re.Match[str]) -> str:
        name, value = match[1], match[2].strip('"')
        if name not in names:
            return match[0]
        words = name.replace("_", "-")
        return {"True": f"--{words}", "False": f"--no-{words}"}.get(value, f"--{words} {value}")

    return _ARGUMENT.sub(flag, sentence)
