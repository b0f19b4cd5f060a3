"""docs/develop/request.md: a request comes by the functions of the page, in its order."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest

from tests.engines import MODEL, ROOT
from vllm.fork.processes import one_process

PAGE = ROOT / "docs" / "develop" / "request.md"
ROW = re.compile(r"^\| (\d+) \| `([\w.]+)` \| `(vllm/[\w/]+\.py)` \|", re.MULTILINE)


def steps() -> dict[str, CodeType]:
    """The functions of the page, by their names, with their code."""
    found = {}
    for _, name, path in ROW.findall(PAGE.read_text()):
        value: Any = importlib.import_module(".".join(Path(path).with_suffix("").parts))
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = value.__code__
    return found


class FirstCalls:
    """Notes in which order functions are first called, in any thread."""

    def __init__(self, functions: dict[str, CodeType]) -> None:
        self._names = {code: name for name, code in functions.items()}
        self.order: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := self._names.pop(frame.f_code, None)):
            self.order.append(name)


def test_a_request_comes_by_the_steps_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import LLM

    # Scheduler and model share a process; here it is this one, for its calls to be seen.
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setattr(one_process, "envs", SimpleNamespace(VLLM_ENABLE_V1_MULTIPROCESSING=True))
    functions = steps()
    assert len(functions) == len(ROW.findall(PAGE.read_text())) == 12
    llm = LLM(
        str(MODEL), dtype="bfloat16", hf_compat=True, max_model_len=64, kv_cache_memory_bytes=2**24
    )
    calls = FirstCalls(functions)
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        llm.generate(["def main"], repetition_penalty=1.1, max_new_tokens=4, use_tqdm=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert calls.order == [*functions]
