"""Activations as Hugging Face's modules compute them: PyTorch's functions, a half at a time.

Hugging Face has the two halves of a gated activation in tensors of their own. PyTorch's vector
loops round a float32 element by where it lies in its row's memory (the remainder of a row goes
through other code), so the halves are made contiguous first.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from vllm.model_executor.layers.activation import GeluAndMul, MulAndSilu, SiluAndMul


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = x.chunk(2, dim=-1)
    return first.contiguous(), second.contiguous()


def forward_silu_and_mul(layer: SiluAndMul, x: torch.Tensor) -> torch.Tensor:
    """``act_fn(gate) * up`` of ``LlamaMLP``; x: [..., 2 * d], returns [..., d]."""
    gate, up = _halves(x)
    return functional.silu(gate) * up


def forward_mul_and_silu(layer: MulAndSilu, x: torch.Tensor) -> torch.Tensor:
    """``up * act_fn(gate)``, the halves the other way round; x: [..., 2 * d], returns [..., d]."""
    up, gate = _halves(x)
    return up * functional.silu(gate)


def forward_gelu_and_mul(layer: GeluAndMul, x: torch.Tensor) -> torch.Tensor:
    """``act_fn(gate) * up`` of ``GemmaMLP``; x: [..., 2 * d], returns [..., d]."""
    gate, up = _halves(x)
    return functional.gelu(gate, approximate=layer.approximate) * up
