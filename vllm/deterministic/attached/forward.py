"""What is done before an attached model computes."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from vllm.hf_layers.engine.exact_models import CACHE_NAMES

from ..refusal import attach_refusal as refusal
from .adapters import adopt_adapters
from .dropout import refuse_dropout
from .form import followings
from .holders import check_holders
from .interface import NAME, NAME_IN_TRAINING, note_positions
from .states import MixerForm, check_arguments

__all__ = ["prepare_forwards", "refuse_autocast"]


def prepare_forwards(model: PreTrainedModel, *, is_sealed: bool) -> None:
    """Let a model look at itself before it computes.

    The hook is that of the innermost model, which is always called as a module: PEFT calls the
    ``forward`` of the outer one, and OPT that of the one between.

    Args:
        model: with its forms.
        is_sealed: whether its weights are packed: nothing of it follows parameters.
    """
    models = [one for one in model.modules() if isinstance(one, PreTrainedModel)]
    inner: Any = models[-1]
    checks = _Checks(
        takes_positions="position_ids" in inspect.signature(inner.forward).parameters,
        dtype=model.dtype if is_sealed else None,
    )
    inner.register_forward_pre_hook(partial(_prepare, model, checks), with_kwargs=True)
    if any(isinstance(one, MixerForm) for one in model.modules()):
        # The outer model's: what its layers do not look at does not reach the inner one.
        model.register_forward_pre_hook(_check_for_states, with_kwargs=True)


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


def _check_attention(inner: Any) -> None:
    """Refuse another attention than the kernels'.

    Raises:
        ValueError: it was chosen after the model was attached.
    """
    if inner.config._attn_implementation not in (NAME, NAME_IN_TRAINING):
        raise refusal(
            f"attn_implementation={inner.config._attn_implementation!r}",
            "attention has another order of sums there: leave the one that attach() has set",
        )


def _check_for_states(
    model: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    given = [*arguments[:1], options.get("input_ids"), options.get("inputs_embeds")]
    tokens = next((one for one in given if one is not None), None)
    cache = _cache_of(options)
    check_arguments(tokens, options, is_first=cache is None or not _goes_on(cache))


def _cache_of(options: dict[str, Any]) -> Any:
    return next((options[name] for name in CACHE_NAMES if options.get(name) is not None), None)


def _goes_on(cache: Any) -> bool:
    """Whether there were tokens before."""
    with suppress(ValueError):  # of layers with states alone
        return cache.get_seq_length() > 0
    return cache.has_previous_state()


def _counted(mask: Any) -> torch.Tensor | None:
    """Return positions that count from each row's first token, as in ``generate()``; None without a
    mask of padding.
    """
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return None
    return (mask.long().cumsum(1) - 1).clamp(min=0)


@dataclass(frozen=True)
class _Checks:
    """What is looked at before a model computes.

    Attributes:
        takes_positions: whether its forward does.
        dtype: of its packed weights; None if it has parameters.
    """

    takes_positions: bool
    dtype: torch.dtype | None


def _prepare(
    model: PreTrainedModel,
    checks: _Checks,
    inner: nn.Module,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    _check_attention(inner)
    if checks.dtype is None:
        refuse_autocast(model.device)
    elif model.dtype != checks.dtype:
        raise refusal(
            f"the model in {model.dtype}",
            f"its weights are packed: leave it in {checks.dtype}, in which it was attached",
        )
    cache = _cache_of(options)
    if cache is not None and _goes_on(cache):
        note_positions(options.get("position_ids"), options.get("attention_mask"))
        return arguments, options  # goes on with what was checked when the cache was empty
    if checks.dtype is None:
        adopt_adapters(model)
    check_holders(model)
    if model.training:
        refuse_dropout(model)
    for following in followings(model):
        following.check_bytes()
    mask = options.get("attention_mask")
    if checks.takes_positions and options.get("position_ids") is None:
        options = {**options, "position_ids": _counted(mask)}
    note_positions(options.get("position_ids"), mask)
    return arguments, options
