"""The log-probabilities that an engine in deterministic mode gives to tokens."""

from __future__ import annotations

from typing import Any

import torch

from .forward import refuse_autocast
from .gradients.log_probs import filtered, log_probs_of
from .interface import NAME, NAME_IN_TRAINING

__all__ = ["log_probs_of_tokens"]


def log_probs_of_tokens(
    model: Any,
    input_ids: torch.Tensor,
    *,
    attention_mask: torch.Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    logits_to_keep: int | None = None,
) -> torch.Tensor:
    """Return the log-probabilities of tokens, given those before them.

    With the last three arguments left out they are those that ``LLM(..., deterministic=True)``
    returns with its default ``logprobs_mode="raw_logprobs"``; with those of a request's
    ``SamplingParams``, those of ``"processed_logprobs"``, in which a removed token has -infinity.

    Args:
        model: attached, with ``training=True`` if gradients are wanted; or PEFT's model of it.
        input_ids: int64 [batch, tokens].
        attention_mask: int64 or bool [batch, tokens], 0 for padding on the left and on the
            right; None for none.
        temperature: logits are divided by it; above 0.
        top_k: how many tokens stay; None, 0 or -1 for all.
        top_p: the share of the probability that stays, above 0; None for 1.
        logits_to_keep: of how many of the last tokens of each row; None for all but the first.

    Returns:
        float32 [batch, logits_to_keep], [batch, tokens - 1] by default; 0 for padding, and for the
        first token of a row, which no token is before.

    Raises:
        ValueError: the model is not attached, autocast is on, or an argument is none of these.
    """
    _check_shapes(input_ids, attention_mask)
    kept = input_ids.shape[1] - 1 if logits_to_keep is None else logits_to_keep
    _check(model, input_ids, kept)
    _check_sampling(temperature, top_k, top_p)
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=kept + 1,
    ).logits[:, -kept - 1 :]
    rows = logits.flatten(0, 1)
    if temperature != 1.0 or top_k not in (None, 0, -1) or top_p not in (None, 1.0):
        rows = filtered(rows, temperature, top_k or 0, 1.0 if top_p is None else top_p)
    # The last logits are asked about any token: leaving them out here would copy all others.
    next_ids = torch.nn.functional.pad(input_ids[:, -kept:], (0, 1))
    values = log_probs_of(rows, next_ids.flatten()).view_as(next_ids)[:, :-1]
    is_token = attention_mask.bool()
    is_given = (is_token[:, 1:] & is_token[:, :-1])[:, -kept:]
    return values.masked_fill(~is_given, 0.0)


def _check_shapes(input_ids: Any, attention_mask: Any) -> None:
    if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2:
        raise ValueError(
            f"token_log_probs: input_ids is {_form_of(input_ids)}: it must be a tensor [batch, "
            "tokens], with one row for one sequence."
        )
    if attention_mask is not None and _form_of(attention_mask) != _form_of(input_ids):
        raise ValueError(
            f"token_log_probs: attention_mask is {_form_of(attention_mask)}, and input_ids "
            f"{_form_of(input_ids)}: both must have the same shape."
        )


def _form_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    return f"of type {type(value).__name__}"


def _check(model: Any, input_ids: torch.Tensor, kept: int) -> None:
    if getattr(model.config, "_attn_implementation", None) not in (NAME, NAME_IN_TRAINING):
        raise ValueError(
            f"token_log_probs needs a model with the engine's kernels, not {type(model).__name__}: "
            "call vllm.deterministic.attach(model, training=True) first."
        )
    refuse_autocast(input_ids.device)
    if not 0 < kept < input_ids.shape[1]:
        raise ValueError(
            f"token_log_probs: {kept} of {input_ids.shape[1]} tokens were asked for, and the first "
            "has none before it: logits_to_keep must be 1 to one less than there are."
        )


def _check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if top_k is not None and (type(top_k) is not int or top_k < -1):
        raise ValueError(
            f"token_log_probs: top_k={top_k!r} must be a whole number, or None, 0 or -1 for all."
        )
    if not temperature > 0 or not 0 < (1.0 if top_p is None else top_p) <= 1:
        raise ValueError(
            f"token_log_probs: temperature={temperature}, top_p={top_p}: a temperature must be "
            "above 0, and top_p above 0 and at most 1."
        )
