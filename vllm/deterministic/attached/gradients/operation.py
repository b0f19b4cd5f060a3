"""What all operations with gradients have in common."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Operation", "asks_for_gradient"]


class Operation(torch.autograd.Function):
    """An operation whose ``forward`` takes no context, so that it can be called by itself."""

    @classmethod
    def of(cls, *arguments: Any) -> Any:
        """Return what the operation computes, with its gradient if one is asked for."""
        return (cls.apply if asks_for_gradient(*arguments) else cls.forward)(*arguments)


def asks_for_gradient(*arguments: Any) -> bool:
    """Return whether gradients are computed now, of one of the arguments."""
    return torch.is_grad_enabled() and any(
        isinstance(one, torch.Tensor) and one.requires_grad for one in arguments
    )
