"""Models for inference: packed weights take the place of parameters.

What would change them says so, and changes nothing.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers import PreTrainedModel

from .form import Form, followings, leave_own_class
from .linear import HeadForm, LinearForm

__all__ = ["seal"]

_PACKED = (
    "an attached model takes no weights, since its own are packed: load them into a model of "
    "Transformers, and attach that."
)


def seal(model: PreTrainedModel) -> None:
    """Pack the weights of a model, one after the other in the place of the parameters.

    The ways to save it, and to load its weights, raise a ValueError from then on.
    """
    dtype = model.dtype
    for following in followings(model):
        following.seal()
    model.save_pretrained = _refuse_to_save
    for module in model.modules():
        if isinstance(module, LinearForm):
            leave_own_class(module)  # or PEFT would take it for a layer with a weight
        if isinstance(module, Form):
            _keep_none_at_hand(module)
        if isinstance(module, HeadForm):  # which models ask for its dtype, as Mamba 2
            setattr(module, "weight", torch.empty(0, dtype=dtype))  # noqa: B010
        module.register_load_state_dict_pre_hook(_refuse_weights)  # any may be told to load


def _keep_none_at_hand(module: Any) -> None:
    """Let parameters that are None be attributes, which PyTorch finds before all parameters."""
    for name in [name for name, parameter in module._parameters.items() if parameter is None]:
        delattr(module, name)
        setattr(module, name, None)


def _refuse_to_save(*arguments: Any, **options: Any) -> NoReturn:
    raise ValueError("an attached model cannot be saved: its weights are packed. Save it before.")


def _refuse_weights(*_: Any) -> NoReturn:
    raise ValueError(_PACKED)
