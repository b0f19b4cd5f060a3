"""Machines without a compiler: no engine starts that a request would end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import MODEL
from vllm.engine.arg_utils import EngineArgs

ANSWER = f"""
from vllm import LLM, SamplingParams
llm = LLM({str(MODEL)!r}, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=1 << 28,
          max_model_len=256)
params = SamplingParams(temperature=0, max_tokens=4, logprobs=3)
print(list(llm.generate(["def f("] , params, use_tqdm=False)[0].outputs[0].token_ids))
"""


def test_a_model_that_is_to_be_compiled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    with pytest.raises(ValueError, match=r"^There is no C\+\+ compiler \(no-such-compiler\), "):
        EngineArgs(str(MODEL), dtype="float32").create_engine_config()
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match=rf"^Python's header {tmp_path}/Python\.h is not there, "):
        EngineArgs(str(MODEL), dtype="float32").create_engine_config()
    assert "TORCH_COMPILE_DISABLE" not in os.environ


@pytest.mark.long
def test_an_eager_engine_answers_what_upstream_compiles_for(tmp_path: Path) -> None:
    """Logprobs: a function of vLLM's sampler is compiled, whatever the model is."""
    answers = {}
    for compiler in ("g++", "no-such-compiler"):
        done = subprocess.run(
            [sys.executable, "-c", ANSWER],
            env=os.environ | {"CXX": compiler, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / compiler)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        answers[compiler] = done.stdout.splitlines()[-1]
    assert answers["g++"] == answers["no-such-compiler"]
    assert (tmp_path / "g++").exists()
    assert not list((tmp_path / "no-such-compiler").rglob("*.cpp"))
