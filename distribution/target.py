"""Which target to build: CPU or CUDA, and with which kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from distribution.environment import installed_version
from distribution.errors import DistributionError
from distribution.pins import KERNELS, TARGETS


def choose_target(site: Path | None = None) -> str:
    """Return "cpu" or "cuda".

    VLLM_TARGET_DEVICE decides; else the label of the torch that the environment has (2.13.0+cpu,
    2.13.0+cu130); else, as PyPI's builds have none, whether ``nvidia-smi`` lists a GPU.

    Raises:
        DistributionError: VLLM_TARGET_DEVICE names another device.
    """
    asked = os.environ.get("VLLM_TARGET_DEVICE")
    if asked:
        if asked not in TARGETS:
            raise DistributionError(
                f"VLLM_TARGET_DEVICE={asked} is not a target of this distribution: use cpu or "
                "cuda, or unset it to let the installation decide."
            )
        return asked
    label = (installed_version("torch", site) or "").partition("+")[2]
    if label == "cpu" or label.startswith("cu"):
        return "cpu" if label == "cpu" else "cuda"
    return "cuda" if _has_gpu() else "cpu"


def choose_kernels(target: str) -> str:
    """Return "all", or "source" for a CUDA build without upstream's compiled files.

    VLLM_KERNELS decides.

    Raises:
        DistributionError: VLLM_KERNELS has another value, or the target is not CUDA.
    """
    asked = os.environ.get("VLLM_KERNELS") or "all"
    if asked not in KERNELS:
        raise DistributionError(
            f"VLLM_KERNELS={asked} is not a choice of kernels: use all or source, or unset it."
        )
    if asked == "source" and target != "cuda":
        raise DistributionError(
            "VLLM_KERNELS=source leaves out upstream's CUDA extensions, and this is a build for "
            "CPUs: set VLLM_TARGET_DEVICE=cuda, or unset VLLM_KERNELS."
        )
    return asked


def _has_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return listed.returncode == 0 and "GPU" in listed.stdout
