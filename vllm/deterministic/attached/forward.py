"""What is done before an attached model that is not sealed computes."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..refusal import attach_refusal as refusal
from .adapters import adopt_adapters
from .dropout import refuse_dropout
from .form import followings
from .holders import check_holders

__all__ = ["prepare_forwards", "refuse_autocast"]


def prepare_forwards(model: PreTrainedModel) -> None:
    """Let a model look at itself before it computes.

    The hook is that of the innermost model, which is always called as a module: PEFT calls the
    ``forward`` of the outer one, and OPT that of the one between.
    """
    models = [one for one in model.modules() if isinstance(one, PreTrainedModel)]
    inner: Any = models[-1]
    takes_positions = "position_ids" in inspect.signature(inner.forward).parameters
    inner.register_forward_pre_hook(partial(_prepare, model, takes_positions), with_kwargs=True)


def refuse_autocast(device: torch.device) -> None:
    """Refuse to compute under ``torch.autocast``.

    Raises:
        ValueError: it is on.
    """
    if torch.is_autocast_enabled(device.type):
        raise refusal(
            "torch.autocast",
            "it chooses the dtype of operations, and the model's own is that of the engine: leave "
            "it out (bf16=False, fp16=False in TrainingArguments)",
        )


def _prepare(
    model: PreTrainedModel,
    takes_positions: bool,
    inner: nn.Module,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    refuse_autocast(model.device)
    cache = options.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        return arguments, options  # goes on with what was checked when the cache was empty
    adopt_adapters(model)
    check_holders(model)
    if model.training:
        refuse_dropout(model)
    for following in followings(model):
        following.check_bytes()
    if takes_positions and options.get("position_ids") is None:
        mask = options.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            options = {**options, "position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}
    return arguments, options
