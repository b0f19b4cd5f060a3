"""A Ray of these tests' own, on this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.engines import ROOT
from tests.scale_out.processes import descendants, end_all, named
from tests.server.conftest import ENVIRONMENT


@dataclass
class LocalRay:
    """A Ray that runs.

    Attributes:
        variables: what a command has to find in its environment to use it.
        pid: of the process that all of Ray's processes descend from.
    """

    variables: dict[str, str]
    pid: int

    def oldest(self, title: str) -> psutil.Process:
        """Return, of Ray's processes with a title like this, the one that began first and has begun
        to work: `__init__` stands in the title of an actor that has not.
        """
        found = named(descendants(self.pid), title)
        starting = named(found, "__init__")
        return min(set(found) - set(starting), key=psutil.Process.create_time)


def settings(folder: str) -> dict[str, str]:
    """Return the variables for a Ray that writes to a folder, and for what uses it."""
    return {
        "PATH": ENVIRONMENT["PATH"],
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's workers would wait for everything else that the machine does.
        "RAY_worker_niceness": "0",
        "VLLM_COMPILE_LOCK_DIR": str(Path(folder, "locks")),  # of datatrove
    }


@pytest.fixture(scope="session")
def local_ray() -> Iterator[LocalRay]:
    # The paths of Ray's sockets must not be long.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        variables = settings(folder)
        running = subprocess.Popen(
            [sys.executable, "-m", "tests.scale_out.local_ray", folder],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert running.stdin
        assert running.stdout
        address = running.stdout.readline().strip()
        assert address
        try:
            yield LocalRay({**variables, "RAY_ADDRESS": address}, running.pid)
        finally:
            started = descendants(running.pid)
            running.stdin.close()
            running.wait(timeout=60)
            end_all(started)
