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
from distribution.pins import ROOT
from distribution.pristine import build_folder

LIBRARY = "_fork_C.abi3.so"
USUAL_NVCC = "/usr/local/cuda/bin/nvcc"


def check_compilers(target: str) -> None:
    """Stop if a compiler that `target` needs is missing.

    Raises:
        DistributionError: names the compiler and how to point to it.
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
    if target == "cuda" and nvcc() is None:
        raise DistributionError(
            "No nvcc was found for csrc/cuda: install the CUDA toolkit (12.8 or newer) and set "
            "CUDA_HOME, or build for CPU with VLLM_TARGET_DEVICE=cpu."
        )


def nvcc() -> Path | None:
    """Return the CUDA compiler of CUDA_HOME, PATH or the usual folder."""
    home = os.environ.get("CUDA_HOME")
    candidates = [f"{home}/bin/nvcc" if home else None, shutil.which("nvcc"), USUAL_NVCC]
    return next((Path(path) for path in candidates if path and Path(path).exists()), None)


def build_library(target: str, root: Path = ROOT) -> Path:
    """Compile what changed since the last time and return the library's path.

    Raises:
        DistributionError: no compiler, or the compilation failed; its output goes to stderr.
    """
    check_compilers(target)
    folder = build_folder(target, root) / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    _forget_other_sources(folder, root / "csrc")
    _run([_tool("cmake"), "-S", str(root / "csrc"), "-B", str(folder), *_configuration(target)])
    _run([_tool("cmake"), "--build", str(folder)])
    return folder / LIBRARY


def _forget_other_sources(folder: Path, source: Path) -> None:
    """Empty the folder if the repository stood elsewhere: CMake refuses to go on from there."""
    cache = folder / "CMakeCache.txt"
    home = f"CMAKE_HOME_DIRECTORY:INTERNAL={source}\n"
    if cache.exists() and home not in cache.read_text():
        shutil.rmtree(folder)
        folder.mkdir()


def _configuration(target: str) -> list[str]:
    options = [
        "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={_torch_folder() / 'share' / 'cmake'}",
        "-UTORCH_INCLUDE_DIR", "-UTORCH_CPU_LIBRARY",  # pip's build environments come and go
        f"-DPython_EXECUTABLE={sys.executable}", f"-DVLLM_FORK_DEVICE={target}",
    ]  # fmt: skip
    if target == "cuda":
        options.append(f"-DCMAKE_CUDA_COMPILER={nvcc()}")
    return options


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


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise DistributionError(
            f"`{' '.join(command[:2])} ...` failed while compiling csrc/; its output is above "
            "(with pip, add -v to see it)."
        )
