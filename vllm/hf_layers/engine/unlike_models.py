"""Settings of a model that no twin can show: `generate()` leaves the formula, or texts are long."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Unlike:
    """What vLLM computes otherwise, though no twin can show it.

    Attributes:
        what: argument or field, as it was given.
        why: what vLLM does with it, and what Transformers does.
        remedy: what to use.
    """

    what: str
    why: str
    remedy: str


def unlike(config: PreTrainedConfig, max_model_len: int) -> Unlike | None:
    """Return what a twin's texts are too short for: texts come to positions that vLLM has no rotary
    angles for, or a field is set that `ModelFacts.refused` names; None if there is no such thing.

    Args:
        config: of the model's text part, as Transformers reads it.
        max_model_len: tokens of the longest text that the engine takes.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if _has_plain_rope(config) and positions and max_model_len > positions:
        why = (
            f"since vLLM has rotary angles for max_position_embeddings={positions} positions alone"
        )
        remedy = f'max_model_len={positions}, or hf_compat="exact"'
        return Unlike(f"max_model_len={max_model_len}", why, remedy)
    for name, why in facts_of(config).refused.items():
        if value := getattr(config, name, None):
            return Unlike(f"{name}={value} of {config.model_type}", why, 'hf_compat="exact"')
    return None


def check_long_texts(config: PreTrainedConfig, max_model_len: int, given: str) -> None:
    """Check that nothing is `unlike`.

    Args:
        config: see there.
        max_model_len: likewise.
        given: the flag, as it was given.

    Raises:
        ValueError: something is.
    """
    if found := unlike(config, max_model_len):
        raise ValueError(f"{given} does not go with {found.what}, {found.why}: use {found.remedy}.")


def _has_plain_rope(config: PreTrainedConfig) -> bool:
    """Whether rotary angles of a layer are those of the positions, which no factor stretches."""
    ropes = getattr(config, "rope_parameters", None) or {}  # or one for each kind of layer
    return any(
        isinstance(rope, dict) and rope.get("rope_type") == "default"
        for rope in (ropes, *ropes.values())
    )
