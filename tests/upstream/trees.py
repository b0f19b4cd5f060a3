"""Runs one script in this distribution and in unpatched upstream vLLM, each in its own process.

The unpatched tree is the one that the distribution was assembled from; both run in the same
environment, so that nothing but the fork's changes differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from distribution.pristine import pristine_tree
from tests.conftest import ROOT

PROBES = Path(__file__).parent / "probes"


class ProbeFailed(Exception):
    """The script ended with an error; the message is the end of what it printed."""


def run_probe(
    name: str, *, upstream: bool, arguments: dict[str, Any] | None = None, **environment: str
) -> Any:
    """Run ``probes/<name>.py`` and return the JSON value that it writes.

    Args:
        name: of the script.
        upstream: run it with unpatched vLLM instead of this distribution.
        arguments: read by the script as JSON from its first argument.
        environment: variables to set on top of this process's.

    Raises:
        ProbeFailed: the script failed.
    """
    variables = {**os.environ, **environment}
    if upstream:
        variables["PYTHONPATH"] = str(pristine_tree("cpu"))
    command = [sys.executable, str(PROBES / f"{name}.py"), json.dumps(arguments or {})]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, cwd=ROOT / "tests", timeout=300
    )
    if done.returncode != 0:
        raise ProbeFailed((done.stdout + done.stderr)[-8000:])
    result = json.loads(done.stdout.splitlines()[-1])
    is_pristine = "pristine" in result["vllm"]
    assert is_pristine == upstream, f"ran {result['vllm']}"
    return result["value"]
