"""The C++ compiler for csrc/."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

from distribution.errors import DistributionError

_NAMES = ("c++", "g++", "clang++")
_NEEDED = ("-std=c++20", "-mavx512bf16", "-mavx512vnni", "-mamx-int8")
"""What CMakeLists.txt asks for, in part; every x86-64 machine compiles for all of them."""


def check_cxx() -> None:
    """Stop if there is no C++ compiler, or one that is too old.

    Raises:
        DistributionError: says how to get one, or to point to one.
    """
    chosen = os.environ.get("CXX", "").strip()
    if chosen and shutil.which(shlex.split(chosen)[0]) is None:  # may hold options, as for CMake
        raise DistributionError(
            f"CXX={chosen} names a C++ compiler that was not found: set CXX to one that is there, "
            "or unset it to use the machine's."
        )
    compiler = chosen or next((name for name in _NAMES if shutil.which(name)), "")
    if not compiler:
        raise DistributionError(
            "No C++ compiler was found for csrc/: install g++ (Debian, Ubuntu: apt install g++), "
            "or set CXX to one."
        )
    command = [*shlex.split(compiler), *_NEEDED, "-x", "c++", "-fsyntax-only", "/dev/null"]
    if subprocess.run(command, capture_output=True).returncode != 0:
        raise DistributionError(
            f"The C++ compiler {compiler} does not compile C++20 for AVX-512 and AMX, as csrc/ "
            "needs: install GCC 11 or Clang 12, or a later one, or set CXX to one."
        )
