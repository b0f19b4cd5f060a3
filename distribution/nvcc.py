"""The CUDA compiler: the machine's, or NVIDIA's own packages for pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MAJOR = 13
"""CUDA's major version in the pinned torch, whose runtime library the kernels share."""

PACKAGES = tuple(
    f"nvidia-{name}=={MAJOR}.0.*"
    for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime", "cuda-cccl")
)
"""What pip must install to compile CUDA code on a machine without the CUDA toolkit (270 MB)."""

USUAL_NVCC = "/usr/local/cuda/bin/nvcc"


def nvcc() -> Path | None:
    """Return the CUDA compiler of CUDA_HOME, PATH, the usual folder or pip's packages.

    One of another major version than torch's is passed over.
    """
    home = os.environ.get("CUDA_HOME")
    candidates = [
        f"{home}/bin/nvcc" if home else None,
        shutil.which("nvcc"),
        USUAL_NVCC,
        *(f"{folder}/nvidia/cu{MAJOR}/bin/nvcc" for folder in sys.path),
    ]
    return next((Path(path) for path in candidates if path and _fits(path)), None)


def _fits(path: str) -> bool:
    if not os.access(path, os.X_OK):
        return False
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    return bool(re.search(rf"\brelease {MAJOR}\.", said))


def linker_environment(compiler: Path, folder: Path) -> dict[str, str]:
    """Return variables with which CMake and the linker find `compiler`'s runtime library.

    A toolkit needs none. NVIDIA's packages lay out their libraries in another way and leave out
    the name without a version, so that links to them are made in `folder`.
    """
    libraries = compiler.parents[1] / "lib"
    runtime = libraries / f"libcudart.so.{MAJOR}"
    if not runtime.exists() or (libraries / "libcudart.so").exists():
        return {}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for library in libraries.glob("lib*"):
        (folder / library.name).symlink_to(library)
    (folder / "libcudart.so").symlink_to(runtime)
    return {"LIBRARY_PATH": str(folder), "CMAKE_LIBRARY_PATH": str(folder)}
