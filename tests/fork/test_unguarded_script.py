"""A script that starts an engine when it is imported is told what to do, in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.engines import MODEL

SCRIPT = """
from vllm import LLM

LLM({model!r}, dtype="float32", hf_compat=True)
"""


def test_what_it_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(model=str(MODEL)))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    assert done.returncode == 1
    assert done.stderr.count("put what the script does under `if __name__ ==") == 1
    assert done.stderr.count("Traceback") == 1  # of the engine that could not be started
    assert "bootstrapping" not in done.stderr
