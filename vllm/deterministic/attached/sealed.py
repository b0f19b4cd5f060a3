"""Models for inference: packed weights take the place of parameters.

What would change them says so, and changes nothing.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import nn
from transformers import PreTrainedModel

from .form import Form, followings

__all__ = ["seal", "without_gradient"]

_INFERENCE = (
    "an attached model is for inference, since its kernels have no gradients: train the model of "
    "Transformers, and attach it then."
)
_PACKED = (
    "an attached model takes no weights, since its own are packed: load them into a model of "
    "Transformers, and attach that."
)


class _NoGradient(torch.autograd.Function):
    """The identity, through which nothing goes back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        raise ValueError(_INFERENCE)


def without_gradient(logits: torch.Tensor) -> torch.Tensor:
    """Return `logits`, of which a backward pass is a ValueError that says what to do.

    Without it PyTorch says that no tensor requires a gradient, or computes wrong ones for those
    that somebody has made to require them.
    """
    if not torch.is_grad_enabled():
        return logits
    return _NoGradient.apply(logits, logits.new_empty(0, requires_grad=True))


def seal(model: PreTrainedModel) -> None:
    """Pack the weights of a model, one after the other in the place of the parameters.

    The ways to save it, and to load its weights, raise a ValueError from then on.
    """
    for following in followings(model):
        following.seal()
    model.save_pretrained = _refuse_to_save
    for module in model.modules():
        if isinstance(module, Form):
            _keep_none_at_hand(module)
        module.register_load_state_dict_pre_hook(_refuse_weights)  # any may be told to load


def _keep_none_at_hand(module: nn.Module) -> None:
    """Let parameters that are None be attributes, which PyTorch finds before all parameters."""
    for name in [name for name, parameter in module._parameters.items() if parameter is None]:
        delattr(module, name)
        setattr(module, name, None)


def _refuse_to_save(*arguments: Any, **options: Any) -> NoReturn:
    raise ValueError("an attached model cannot be saved: its weights are packed. Save it before.")


def _refuse_weights(*_: Any) -> NoReturn:
    raise ValueError(_PACKED)
