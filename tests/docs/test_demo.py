"""What ``make demo`` prints, once everything is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.engines import MODEL, ROOT
from tests.server.conftest import ENVIRONMENT


def printed(*arguments: str) -> str:
    """Run the demo, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "examples/hf_vs_vllm.py", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_bundled_model() -> None:
    assert printed(str(MODEL)).count("16/16 answers equal") == 2


@pytest.mark.long
def test_the_demo() -> None:
    """With 500 tokens of OPT-125m, of which Transformers takes a minute."""
    found = printed()
    assert found.count("16/16 answers equal") == 2
    assert "1/1 answers equal" in found
