"""Checkpoints of one architecture with different weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = list[tuple[str, torch.Tensor]]


def tensors_of(folder: Path) -> Tensors:
    """Return the tensors of a checkpoint, by name."""
    return [
        pair for file in sorted(folder.glob("*.safetensors")) for pair in load_file(file).items()
    ]


def changed_checkpoint(folder: Path, target: Path) -> Path:
    """Write a checkpoint with other weights, of about the same size; return `target`."""
    shutil.copytree(folder, target)
    generator = torch.Generator().manual_seed(7)
    for file in sorted(target.glob("*.safetensors")):
        changed = {}
        for name, tensor in load_file(file).items():
            factors = 1 + 0.3 * torch.randn(tensor.shape, generator=generator)
            changed[name] = (tensor.float() * factors).to(tensor.dtype)
        save_file(changed, file, metadata={"format": "pt"})
    return target
