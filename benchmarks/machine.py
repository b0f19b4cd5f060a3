"""The machine that a benchmark of one step runs on."""

from __future__ import annotations

import os
import platform

import torch


def environment(device: torch.device) -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cpu": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def wait_for_gpu(logits: torch.Tensor) -> None:
    """Wait for what is queued on the GPU that holds `logits`, if one does."""
    if logits.is_cuda:
        torch.cuda.synchronize(logits.device)
