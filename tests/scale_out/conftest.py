"""A Ray of these tests' own, on this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import ROOT
from tests.scale_out.processes import descendants, end_all
from tests.server.conftest import ENVIRONMENT


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
def ray_variables() -> Iterator[dict[str, str]]:
    """What a command, or this process, has to find in its environment to use the local Ray."""
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
            yield {**variables, "RAY_ADDRESS": address}
        finally:
            started = descendants(running.pid)
            running.stdin.close()
            running.wait(timeout=60)
            end_all(started)
