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
from vllm.hf_layers.layers.linear import LinearByRequest

PAGE = ROOT / "docs" / "develop" / "request.md"
ENGINE = "_RowScheduling.schedule"
"""The first step in the engine's process."""
LAYER = "LinearByRequest"
"""No step, but what tells whether layers are called one by one."""
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
    """Notes in which order functions are first called, in any thread, and which files of hf_compat
    were entered before the first step of the engine.
    """

    def __init__(self, functions: dict[str, CodeType]) -> None:
        self._names = {code: name for name, code in functions.items()}
        self.order: list[str] = []
        self.entered: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        if name := self._names.pop(frame.f_code, None):
            self.order.append(name)
        if ENGINE not in self.order:
            self.entered.update(re.findall(r"/vllm/hf_compat/(.+)", frame.f_code.co_filename))


def first_calls(functions: dict[str, CodeType]) -> tuple[list[str], list[str]]:
    """Answer a request.

    The engine is in this process, which it changes: its threads, and vLLM's variables.

    Returns:
        The functions in the order in which the request came by them; and the files of hf_compat
        that it entered before it was the engine's.
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
    return calls.order, sorted(calls.entered)


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
    order, entered = json.loads(done.stdout.splitlines()[-1])
    if LAYER in order:
        order.remove(LAYER)
    else:  # one operator computed all layers, of prompts too: none asked for a step's runs
        names.remove("step_runs")
    assert order == names
    reading = [file for file in entered if file.startswith(("call/", "frontend.py"))]
    assert len(reading) == 8, reading


if __name__ == "__main__":
    layer = {LAYER: LinearByRequest.__call__.__code__}
    print("\n" + json.dumps(first_calls({**steps(), **layer})), flush=True)
