"""Compiles csrc/ with CMake and Ninja."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from distribution.environment import site_packages
from distribution.errors import DistributionError
from distribution.nvcc import MAJOR, PACKAGES, linker_environment, nvcc
from distribution.pins import ROOT
from distribution.pristine import build_folder

LIBRARY = "_fork_C.abi3.so"


def check_cxx() -> None:
    """Stop if there is no C++ compiler.

    Raises:
        DistributionError: says how to get one, or to point to one.
    """
    chosen = os.environ.get("CXX", "").strip()
    if chosen and shutil.which(shlex.split(chosen)[0]) is None:  # may hold options, as for CMake
        raise DistributionError(
            f"CXX={chosen} names a C++ compiler that was not found: set CXX to one that is there, "
            "or unset it to use the machine's."
        )
    if not chosen and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise DistributionError(
            "No C++ compiler was found for csrc/: install g++ (Debian, Ubuntu: apt install g++), "
            "or set CXX to one."
        )


def build_library(target: str, root: Path = ROOT) -> Path:
    """Compile what changed since the last time and return the library's path.

    Raises:
        DistributionError: no compiler, or the compilation failed; its output goes to stderr.
    """
    check_cxx()
    folder = build_folder(target, root) / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    options, places = _configuration(target), [root / "csrc"]
    variables: dict[str, str] = {}
    if target == "cuda":
        compiler = _required_nvcc()
        places.append(compiler)
        options.append(f"-DCMAKE_CUDA_COMPILER={compiler}")
        variables = linker_environment(compiler, folder.with_name("cuda-runtime"))
    _forget_moved(folder, places)
    _run([_tool("cmake"), "-S", str(root / "csrc"), "-B", str(folder), *options], variables)
    _run([_tool("cmake"), "--build", str(folder)], variables)
    return folder / LIBRARY


def _required_nvcc() -> Path:
    found = nvcc()
    if found is None:
        raise DistributionError(
            f"No nvcc of CUDA {MAJOR} was found for csrc/cuda: install the CUDA toolkit and set "
            f"CUDA_HOME, or run `pip install {' '.join(PACKAGES)}`."
        )
    return found


def _forget_moved(folder: Path, places: list[Path]) -> None:
    """Empty the folder if sources or compiler stood elsewhere: CMake would not go on from there."""
    cache = folder / "CMakeCache.txt"
    if cache.exists() and not all(f"={place}\n" in cache.read_text() for place in places):
        shutil.rmtree(folder)
        folder.mkdir()


def _configuration(target: str) -> list[str]:
    return [
        "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={_torch_folder() / 'share' / 'cmake'}",
        "-UTORCH_INCLUDE_DIR", "-UTORCH_CPU_LIBRARY",  # pip's build environments come and go
        f"-DPython_EXECUTABLE={sys.executable}", f"-DVLLM_FORK_DEVICE={target}",
    ]  # fmt: skip


def _torch_folder() -> Path:
    """Return the torch whose headers csrc/ is compiled against, without importing it.

    pip's build environment has one only if the target environment lacks it.
    """
    found = importlib.util.find_spec("torch")
    folder = Path(found.origin).parent if found and found.origin else site_packages() / "torch"
    if not folder.is_dir():
        raise DistributionError(
            "torch was not found: run `pip install torch` at the version in upstream.toml."
        )
    return folder


def _tool(name: str) -> str:
    """Prefer the build environment's tool to the machine's, which may be too old."""
    beside = Path(sys.executable).parent / name
    found = shutil.which(name) or (str(beside) if beside.exists() else None)
    if found is None:
        raise DistributionError(f"{name} was not found: run `pip install {name}`.")
    return found


def _run(command: list[str], variables: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise DistributionError(
            f"`{' '.join(command[:2])} ...` failed while compiling csrc/; its output is above "
            "(with pip, add -v to see it)."
        )
