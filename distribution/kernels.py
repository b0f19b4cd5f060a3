"""Compiles csrc/ with CMakeLists.txt, CMake and Ninja."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from distribution.cxx import check_cxx
from distribution.errors import DistributionError
from distribution.memory import compilers_at_once
from distribution.nvcc import MAJOR, PACKAGES, linker_environment, nvcc
from distribution.pins import ROOT
from distribution.pristine import build_folder
from distribution.torch_files import torch_folder

LIBRARY = "_fork_C.abi3.so"


def build_library(target: str, root: Path = ROOT) -> Path:
    """Compile what changed since the last time and return the library's path.

    Raises:
        DistributionError: no compiler, or the compilation failed; its output goes to stderr.
    """
    check_cxx()
    folder = build_folder(target, root) / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    options, places = _configuration(target, torch_folder(target, root)), [root]
    variables: dict[str, str] = {}
    if target == "cuda":
        compiler = _required_nvcc()
        places.append(compiler)
        options += [f"-DCMAKE_CUDA_COMPILER={compiler}", _architectures()]
        variables = linker_environment(compiler, folder.with_name("cuda-runtime"))
    _forget_moved(folder, places)
    _run([_tool("cmake"), "-S", str(root), "-B", str(folder), *options], variables)
    jobs = str(compilers_at_once())
    _run([_tool("cmake"), "--build", str(folder), "--parallel", jobs], variables)
    return folder / LIBRARY


def platform_tag() -> str:
    """Return a wheel's platform: this machine's C library is the oldest that can load csrc/."""
    name, version = platform.libc_ver()
    if name != "glibc":
        return f"linux_{platform.machine()}"
    return f"manylinux_{version.replace('.', '_')}_{platform.machine()}"


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


def _configuration(target: str, torch: Path) -> list[str]:
    return [
        "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={torch / 'share' / 'cmake'}",
        "-UTORCH_INCLUDE_DIR", "-UTORCH_CPU_LIBRARY",  # which CMake would not look for again
        f"-DPython_EXECUTABLE={sys.executable}", f"-DVLLM_TARGET_DEVICE={target}",
    ]  # fmt: skip


def _architectures() -> str:
    """Return the option for those of CUDAARCHS: CMake reads the variable the first time alone."""
    named = os.environ.get("CUDAARCHS")
    return f"-DCMAKE_CUDA_ARCHITECTURES={named}" if named else "-UCMAKE_CUDA_ARCHITECTURES"


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
