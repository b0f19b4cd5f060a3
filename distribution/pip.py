"""pip, as the steps of this project's own installation call it."""

from __future__ import annotations

import os
import subprocess
import sys

from distribution.frontend import calling_folder

_NOT_OURS = ("PIP_REPORT", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_EDITABLE",
             "PIP_REQUIREMENT", "PIP_REQUIRE_HASHES", "PIP_DRY_RUN")  # fmt: skip
"""What a user may have set for the installation, and is not meant for looking up one package."""


def run_pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python's pip, as the user has configured it, and return what it printed."""
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"]
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    return subprocess.run(
        command, capture_output=True, text=True, env=variables, cwd=calling_folder()
    )


def reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return pip's first line of error, without its label: the later ones are general."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return lines[0].removeprefix("ERROR: ") if lines else "pip gave no reason"
