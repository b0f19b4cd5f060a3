"""Which layers with states have forms."""

from __future__ import annotations

from copy import copy
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ...refusal import attach_refusal as refusal
from ..form import become
from ..linear import adopt_together
from ..sample import TOLERANCE, difference, sample_rows
from .gated_norm import adopt_gated_norm
from .mixers import MIXERS, ConvolutionForm, MixerForm

__all__ = ["adopt_states", "check_states", "is_mixer"]


def is_mixer(module: nn.Module) -> bool:
    """Whether a module is like a layer with states that is specified."""
    return _form_of(module) is not None


def check_states(model: PreTrainedModel, *, training: bool) -> None:
    """Refuse layers with states where the kernels do not go.

    Args:
        model: to be attached.
        training: whether it is to be trained.

    Raises:
        ValueError: there are such layers, and it is to be trained, or is on a GPU.
    """
    name = next((name for name, one in model.named_modules() if is_mixer(one)), None)
    if name is not None and training:
        raise refusal(
            name, "layers with states have no gradients: attach(model.eval()) is for inference"
        )
    if name is not None and model.device.type != "cpu":
        raise refusal(name, "layers with states have kernels on CPUs alone")


@torch.no_grad()
def adopt_states(module: Any) -> None:
    """Give a layer with states its form; one that computes something else stays as it is."""
    if hasattr(module, "residual_in_fp32"):  # of Mamba 2; the engine's is in the model's dtype
        module.residual_in_fp32 = False
    form = _form_of(module)
    if form is None or not _has_known_parts(module, form):
        return
    weight = getattr(module, form.OUTPUT).weight
    rows = sample_rows(weight.shape[0], weight.dtype, weight.device)
    tried = copy(module)
    become(tried, form)
    results = zip(module(rows.unsqueeze(0))[0], tried(rows.unsqueeze(0))[0], strict=True)
    # Not the largest: norms and differences of the delta rule make much of roundings, at times.
    if median(difference(*pair) for pair in results) < TOLERANCE:
        become(getattr(module, form.CONVOLUTION), ConvolutionForm)
        become(module, form)
        for names in form.TOGETHER:
            adopt_together([getattr(module, name) for name in names])


def _form_of(module: nn.Module) -> type[MixerForm] | None:
    for form in MIXERS:
        if all(hasattr(module, name) for name in form.MARKS):
            return form
    return None


def _has_known_parts(module: Any, form: type[MixerForm]) -> bool:
    """Whether the convolution and the norm of a layer are known; the norm has its form then."""
    conv = getattr(module, form.CONVOLUTION)
    is_known = type(conv) is nn.Conv1d and conv.kernel_size[0] > 1
    if not is_known or not form.NORM:
        return is_known
    norm, groups = getattr(module, form.NORM), getattr(module, "n_groups", 1)
    size = norm.weight.shape[0] if getattr(norm, "weight", None) is not None else 0
    return adopt_gated_norm(norm, [size, size // groups])
