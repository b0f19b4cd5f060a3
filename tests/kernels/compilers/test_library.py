"""Without the library an import ends with one sentence that says what is missing."""

import os
import subprocess
import sys
from pathlib import Path

from vllm.fork_kernels import library


def error(path: Path) -> str:
    """Return how an import ends with the library expected at ``path``."""
    done = subprocess.run(
        [sys.executable, "-c", "import vllm.fork_kernels"],
        env=os.environ | {library.LIBRARY_VARIABLE: str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_missing(tmp_path: Path) -> None:
    path = tmp_path / "absent.so"
    assert error(path) == (
        f"ImportError: This vLLM has no compiled operators (there is no file {path}): build them "
        "with `pip install -e .` in its repository, or install its wheel again, or unset "
        "VLLM_FORK_LIBRARY."
    )


def test_broken(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    found = error(broken)
    assert found.startswith(f"ImportError: This vLLM has no compiled operators ({broken}: ")
    assert "pip install -e ." in found
