"""The rotary frequencies that a configuration of Transformers asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .rope import (
    dynamic_frequencies,
    linear_frequencies,
    llama3_frequencies,
    longrope_frequencies,
    longrope_scale,
    rotary_frequencies,
    yarn_frequencies,
    yarn_scale,
)

__all__ = ["frequencies_of"]

Frequencies = tuple[torch.Tensor, float]


def frequencies_of(
    config: Any, layer_type: str | None = None, *, max_length: int | None = None
) -> Frequencies:
    """Return the frequencies and the scale that a Transformers configuration asks for.

    Args:
        config: a ``PreTrainedConfig`` with ``rope_parameters``.
        layer_type: whose parameters, where they differ between layers.
        max_length: tokens of the longest sequence; by default ``config.max_position_embeddings``.
            LongRoPE's long factors are for models whose sequences may pass the trained length,
            as in vLLM. Dynamic scaling is always that of ``config.max_position_embeddings``.

    Returns:
        float32 [rotated elements / 2], and the factor on cosines and sines.

    Raises:
        ValueError: there is no portable form of the configuration's ``rope_type``.
    """
    parameters = (
        config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    )
    kind = parameters.get("rope_type", "default")
    if kind not in _VARIANTS:
        known = ", ".join(_VARIANTS)
        raise ValueError(f"deterministic mode has no rotary embedding of type {kind!r}: {known}.")
    if "mrope_section" in parameters:
        raise ValueError("deterministic mode has no rotary embedding of several positions (mrope).")
    head_size = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    size = int(head_size * parameters.get("partial_rotary_factor", 1.0))
    longest = max_length or config.max_position_embeddings
    return _VARIANTS[kind](size, parameters, config, longest)


def _of_default(size: int, parameters: Any, config: Any, longest: int) -> Frequencies:
    return rotary_frequencies(size, parameters["rope_theta"]), 1.0


def _of_linear(size: int, parameters: Any, config: Any, longest: int) -> Frequencies:
    return linear_frequencies(size, parameters["rope_theta"], parameters["factor"]), 1.0


def _of_dynamic(size: int, parameters: Any, config: Any, longest: int) -> Frequencies:
    length = config.max_position_embeddings
    trained = parameters.get("max_trained_positions", length)
    base, factor = parameters["rope_theta"], parameters["factor"]
    return dynamic_frequencies(size, base, factor, length, trained), 1.0


def _of_llama3(size: int, parameters: Any, config: Any, longest: int) -> Frequencies:
    frequencies = llama3_frequencies(
        size,
        parameters["rope_theta"],
        parameters["factor"],
        parameters["low_freq_factor"],
        parameters["high_freq_factor"],
        parameters["original_max_position_embeddings"],
    )
    return frequencies, 1.0


def _of_yarn(size: int, parameters: Any, config: Any, longest: int) -> Frequencies:
    trained = parameters["original_max_position_embeddings"]
    factor = parameters["factor"] or config.max_position_embeddings / trained
    frequencies = yarn_frequencies(
        *(size, parameters["rope_theta"], factor, trained),
        beta_fast=parameters.get("beta_fast") or 32,
        beta_slow=parameters.get("beta_slow") or 1,
        truncate=parameters.get("truncate", True),
    )
    names = ("attention_factor", "mscale", "mscale_all_dim")
    return frequencies, yarn_scale(factor, **{name: parameters.get(name) for name in names})


def _of_longrope(size: int, parameters: Any, config: Any, longest: int) -> Frequencies:
    trained = parameters["original_max_position_embeddings"]
    factors = parameters["long_factor" if longest > trained else "short_factor"]
    frequencies = longrope_frequencies(size, parameters["rope_theta"], factors)
    scale = parameters.get("attention_factor")
    if scale is None:
        factor = parameters.get("factor") or config.max_position_embeddings / trained
        scale = longrope_scale(factor, trained)
    return frequencies, float(scale)


_VARIANTS: dict[str, Callable[[int, Any, Any, int], Frequencies]] = {
    "default": _of_default,
    "linear": _of_linear,
    "dynamic": _of_dynamic,
    "llama3": _of_llama3,
    "yarn": _of_yarn,
    "longrope": _of_longrope,
}
