"""docs/develop/request.md: a request comes by the functions of the page, in its order."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from tests.engines import MODEL, ROOT

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


def first_calls(functions: dict[str, CodeType]) -> list[str]:
    """Answer a request, and return in which order it came by the functions.

    The engine is in this process, which it changes: its threads, and vLLM's variables.
    """
    from vllm import LLM
    from vllm.fork.processes import one_process

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # Else the model would be in another process, where nobody sees its calls.
    one_process.envs = SimpleNamespace(VLLM_ENABLE_V1_MULTIPROCESSING=True)  # type: ignore[attr-defined]
    llm = LLM(
        str(MODEL), dtype="bfloat16", hf_compat=True, max_model_len=64, kv_cache_memory_bytes=2**24
    )
    calls = FirstCalls(functions)
    threading.setprofile(calls)
    sys.setprofile(calls)
    llm.generate(["def main"], repetition_penalty=1.1, max_new_tokens=4, use_tqdm=False)
    sys.setprofile(None)
    threading.setprofile(None)
    return calls.order


def test_a_request_comes_by_the_steps_in_their_order() -> None:
    names = [name for _, name, _ in ROW.findall(PAGE.read_text())]
    assert len(names) == 12
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.test_request_page"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == names


if __name__ == "__main__":
    print("\n" + json.dumps(first_calls(steps())), flush=True)
