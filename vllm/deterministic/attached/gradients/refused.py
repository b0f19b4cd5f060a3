"""Refuses gradients of a model for inference."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

__all__ = ["without_gradient"]

_INFERENCE = (
    "an attached model is for inference, since its packed weights have no gradients: use "
    "attach(model, training=True), or train the model of Transformers and attach it then."
)


def without_gradient(logits: torch.Tensor) -> torch.Tensor:
    """Return `logits`, of which a backward pass is a ValueError that says what to do.

    Without it PyTorch says that no tensor requires a gradient, or computes wrong ones for those
    that somebody has made to require them.
    """
    if not torch.is_grad_enabled():
        return logits
    return _NoGradient.apply(logits, logits.new_empty(0, requires_grad=True))


class _NoGradient(torch.autograd.Function):
    """The identity, through which nothing goes back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        raise ValueError(_INFERENCE)
