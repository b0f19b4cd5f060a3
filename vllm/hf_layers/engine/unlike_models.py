"""Settings of a model that no twin can show: `generate()` leaves the formula, or texts are long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.hf_layers.models import facts_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def check_window(config: PreTrainedConfig, given: str) -> None:
    """Check that a window is one that Transformers keeps to.

    Args:
        config: of the model's text part.
        given: the flag, as it was given.

    Raises:
        ValueError: it has one token; ``DynamicSlidingWindowLayer`` keeps all of them then.
    """
    if getattr(config, "sliding_window", None) == 1:
        raise ValueError(
            f"{given} does not go with sliding_window=1, since generate() sees all tokens from "
            "the second step on where its cache is to keep none: use a model with another window."
        )


def check_long_texts(config: PreTrainedConfig, max_model_len: int, given: str) -> None:
    """Check what a twin's texts are too short for.

    Args:
        config: of the model's text part, as Transformers reads it.
        max_model_len: tokens of the longest text that the engine takes.
        given: the flag, as it was given.

    Raises:
        ValueError: texts come to positions that vLLM has no rotary angles for; or a field
            is set that `ModelFacts.refused` names.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if _has_plain_rope(config) and positions and max_model_len > positions:
        raise ValueError(
            f"{given} does not go with max_model_len={max_model_len}, since vLLM has rotary angles "
            f"for max_position_embeddings={positions} positions alone: use "
            f'max_model_len={positions}, or hf_compat="exact".'
        )
    for name, reason in facts_of(config).refused.items():
        if value := getattr(config, name, None):
            raise ValueError(
                f"{given} does not go with {name}={value} of {config.model_type}, {reason}: use "
                'hf_compat="exact".'
            )


def _has_plain_rope(config: PreTrainedConfig) -> bool:
    """Whether rotary angles of a layer are those of the positions, which no factor stretches."""
    ropes = getattr(config, "rope_parameters", None) or {}  # or one for each kind of layer
    return any(
        isinstance(rope, dict) and rope.get("rope_type") == "default"
        for rope in (ropes, *ropes.values())
    )
