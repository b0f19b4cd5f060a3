"""What ``make demo`` prints, once everything is installed."""

from __future__ import annotations

import subprocess
import sys

from tests.engines import ROOT
from tests.server.conftest import ENVIRONMENT


def test_the_demo() -> None:
    done = subprocess.run(
        [sys.executable, "examples/hf_vs_vllm.py"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "16/16 answers equal" in done.stdout
    assert "1/1 answers equal" in done.stdout
