"""Packages of PyPI in a folder of their own: for one process, and not for the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def install_into(folder: Path, *requirements: str) -> None:
    """Put packages into `folder`, without what they require.

    Raises:
        CalledProcessError: pip could not download one of them.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-compile", "--target", str(folder)]
    subprocess.run([*pip, *options, *requirements], check=True)
