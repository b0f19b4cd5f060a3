"""Random weights of a twin, in which all that a model has counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

_EMBEDDING_STD = 0.5
_MATRIX_GAIN = 1.0
_VECTOR_STD = 0.3
"""Spread of biases, norms, scales and sinks around what they begin with: seen in every logit."""


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int) -> None:
    """Overwrite every parameter and every persistent buffer of floating-point numbers, in place.

    Args:
        model: in float32, on the CPU.
        seed: the same one gives the same weights.
    """
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for module in model.modules():
        for weight in (*module.parameters(recurse=False), *_kept_buffers(module)):
            if id(weight) not in seen and weight.is_floating_point():
                seen.add(id(weight))
                _fill(module, weight, generator)


def _kept_buffers(module: nn.Module) -> list[torch.Tensor]:
    left_out = module._non_persistent_buffers_set
    return [
        one for name, one in module._buffers.items() if one is not None and name not in left_out
    ]


def _fill(module: nn.Module, weight: torch.Tensor, generator: torch.Generator) -> None:
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
    if isinstance(module, nn.Embedding):
        weight.copy_(noise * _EMBEDDING_STD)
    elif weight.dim() > 1 and weight.shape[-1] > 1:
        # Conv1D (GPT-2) stores [in, out]; Linear and experts store [..., out, in].
        fan_in = weight.shape[0] if isinstance(module, Conv1D) else weight.shape[-1]
        weight.copy_(noise * (_MATRIX_GAIN / math.sqrt(fan_in)))
    else:
        weight.add_(noise * _VECTOR_STD)


def write_checkpoint(model: PreTrainedModel, folder: Path, architectures: list[str] | None) -> None:
    """Write a model as ``save_pretrained`` does, with nothing said of how it generates.

    Args:
        model: to write.
        folder: where.
        architectures: of the model that the twin is made for, by which vLLM chooses its class;
            None for the class of `model`.
    """
    model.generation_config = GenerationConfig()
    model.save_pretrained(folder)
    if architectures:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": architectures}))
