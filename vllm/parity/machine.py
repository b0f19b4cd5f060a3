"""What the bits of an answer may depend on beside the model and its tokens."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
import transformers

import vllm
from vllm.fork_kernels import library

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "KMP_AFFINITY",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_BATCH_INVARIANT",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_FORK_CPU_ISA",
    "VLLM_FORK_CUDA_DEPENDENT_LAUNCH",
    "VLLM_FORK_CUDA_TENSOR_CORES",
    "VLLM_FORK_OTHER_BITS",
    "VLLM_SPLIT_QKV",
    "VLLM_USE_V2_MODEL_RUNNER",
)
"""Environment variables that choose instructions, threads, libraries or kernels."""


def machine() -> dict[str, str | int]:
    """Return the processors, versions and environment variables of this process."""
    return {
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "kernels": library.cpu_isa(),
        "threads": torch.get_num_threads(),
        **_gpu(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "vllm": vllm.__version__,
        "python": platform.python_version(),
        **{name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _gpu() -> dict[str, str | int]:
    if not torch.cuda.is_available():
        return {"gpu": "none"}
    major, minor = torch.cuda.get_device_capability()
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpu_capability": f"{major}.{minor}",
        "cuda": str(torch.version.cuda),
        "cudnn": torch.backends.cudnn.version() or 0,
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
