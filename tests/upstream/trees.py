"""Runs one script in this distribution and in unpatched upstream vLLM, each in its own process.

The unpatched tree is the one that the distribution was assembled from; both run in the same
environment, so that nothing but the fork's changes differs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from distribution.pristine import compile_bytecode, pristine_tree

TESTS = Path(__file__).resolve().parent.parent
PROBES = TESTS / "upstream" / "probes"


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
    # The engine in the probe's own process: two more would import everything anew.
    variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if upstream:
        variables["PYTHONPATH"] = str(_compiled_pristine_tree())
    command = [sys.executable, str(PROBES / f"{name}.py"), json.dumps(arguments or {})]
    status, printed, errors = _run(command, variables)
    if status != 0:
        raise ProbeFailed((printed + errors)[-8000:])
    result = json.loads(printed.splitlines()[-1])
    is_pristine = "pristine" in result["vllm"]
    assert is_pristine == upstream, f"ran {result['vllm']}"
    return result["value"]


@functools.cache
def _compiled_pristine_tree() -> Path:
    tree = pristine_tree("cpu")
    compile_bytecode(tree)
    return tree


def _run(command: list[str], variables: dict[str, str]) -> tuple[int, str, str]:
    """Run a command with all its children ended afterwards; return its status and output.

    Files and not pipes: the worker of an engine that died would keep a pipe open.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, env=variables, stdout=out, stderr=err, cwd=TESTS, start_new_session=True
        )
        try:
            status = process.wait(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        out.seek(0)
        err.seek(0)
        return status, out.read(), err.read()
