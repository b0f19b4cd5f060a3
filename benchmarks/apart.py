"""A part of a benchmark in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def printed_apart(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Any:
    """Run a module of benchmarks as a program, and return what it prints last, as JSON.

    Args:
        module: such as ``"benchmarks.engine_start"``.
        arguments: of its command line.
        environment: in place of this process's.

    Raises:
        CalledProcessError: it failed; what it said is on the screen.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(done.stdout.splitlines()[-1])
