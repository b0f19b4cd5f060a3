"""Compiles kernels for the CPU, with the emulation of CUDA in csrc/emulation."""

import ctypes
import subprocess
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"
OPTIONS = (
    *("-std=c++20", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-U_FORTIFY_SOURCE", "-DVLLM_FORK_EMULATE_CUDA", "-fPIC", "-shared"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{CSRC}"),
)


def compile_emulation(source: Path, folder: Path) -> ctypes.CDLL:
    """Return the library that g++ makes of a C++ file which includes kernels."""
    path = folder / source.with_suffix(".so").name
    done = subprocess.run(
        ["g++", *OPTIONS, str(source), "-o", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return ctypes.CDLL(str(path))
