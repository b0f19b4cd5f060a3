"""Run tests with another release of Transformers than the one that is installed.

    python -m tools.other_transformers 5.16.1 tests/hf_compat

Without tests it runs those that the release is for: of hf_compat for one that this vLLM's own
requirement allows, of ``attach`` for any other. The release lies in ``build/transformers``, with
those of its requirements that the environment does not meet, and is found before the installed one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tools.packages import install_into

ROOT = Path(__file__).resolve().parent.parent
ATTACH = [f"tests/deterministic/test_attach{part}.py" for part in ("", "_layers", "_refusals")]
HF_COMPAT = ["tests/hf_compat"]


def install(version: str) -> Path:
    """Return a folder for ``PYTHONPATH`` with the release and what it needs besides.

    Raises:
        CalledProcessError: pip found no such release.
    """
    folder = ROOT / "build" / "transformers" / version
    if not (folder / "transformers").is_dir():
        install_into(folder, f"transformers=={version}")
        (release,) = distributions(name="transformers", path=[str(folder)])
        for requirement in missing(release):
            install_into(folder, requirement)
    return folder


def missing(release: Distribution) -> list[str]:
    """Return the requirements of a release that the environment does not meet."""
    needed = [Requirement(text) for text in release.requires or []]
    return [
        f"{one.name}{one.specifier}"
        for one in needed
        if (one.marker is None or one.marker.evaluate({"extra": ""})) and not _is_met(one)
    ]


def _is_met(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(distribution(requirement.name).version)
    except PackageNotFoundError:
        return False


def tests_of(version: str) -> list[str]:
    """Return the tests that a release is tried with."""
    of_vllm = [Requirement(text) for text in distribution("vllm").requires or []]
    bound = next(one.specifier for one in of_vllm if one.name == "transformers")
    return HF_COMPAT if bound.contains(Version(version)) else ATTACH


def main(arguments: Sequence[str]) -> int:
    """Install the release and run pytest; return its status."""
    version, *tests = arguments
    folder = install(version)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", *(tests or tests_of(version))]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
