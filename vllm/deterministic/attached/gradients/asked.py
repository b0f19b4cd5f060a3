"""Whether a gradient is asked for; if not, an operation is called by itself, which costs less."""

from __future__ import annotations

import torch

__all__ = ["is_asked"]


def is_asked(*tensors: torch.Tensor | None) -> bool:
    """Return whether gradients are computed now, and one of the tensors requires its own."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False
