"""A virtual environment as a newcomer has it, and a small repository to install into it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.distribution.fake_repository import make_repository, write_files
from tests.engines import ROOT

BUILD_REQUIREMENTS = ("setuptools>=78.1.1,<81", "packaging>=24", "pip", "cmake>=3.26", "ninja")
KERNELS = {
    "CMakeLists.txt": (
        "cmake_minimum_required(VERSION 3.25)\nproject(kernels LANGUAGES CXX)\n"
        "add_library(_fork_C MODULE csrc/kernel.cpp)\n"
        'set_target_properties(_fork_C PROPERTIES PREFIX "" SUFFIX ".abi3.so")\n'
    ),
    "csrc/kernel.cpp": 'extern "C" int one() { return 1; }\n',
}


def make_small_repository(root: Path) -> Path:
    """Write this project's installation, of a small package with one kernel."""
    make_repository(root)
    write_files(root, KERNELS)
    for name in ("distribution", "setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, root / name)
    return root


class Newcomer:
    """A fresh virtual environment, with the pip that Python brings."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.python = folder / "bin" / "python"

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run pip as from a terminal: what it prints as errors goes to a pipe of its own."""
        return subprocess.run(
            [str(self.python), "-m", "pip", *arguments], capture_output=True, text=True
        )

    def says(self, code: str) -> str:
        done = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def version(self, name: str) -> str:
        return self.says(f"from importlib.metadata import version; print(version({name!r}))")

    def requirements(self) -> list[str]:
        lines = "from importlib.metadata import requires; print(*requires('vllm'), sep='\\n')"
        return [line for line in self.says(lines).splitlines() if line.startswith("torch")]
