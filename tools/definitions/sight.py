"""Whether a twin shows a value at all: what it does not show, no comparison of twins can find."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from vllm.twin.twin import Twin
from vllm.twin.weights import randomise

_LEAST = 2e-5
"""Of the logits' spread: what rounding explains in float32, as a twin judges it."""


def shows(config: PreTrainedConfig, other: PreTrainedConfig, longest: int) -> bool:
    """Return whether the twins of two configurations are different functions in Transformers, or
    have other weights.

    Args:
        config: one of them.
        other: with another value of a field.
        longest: tokens of the longest text that an engine takes.
    """
    (shapes, logits), (others, wanted) = (_computed(one, longest) for one in (config, other))
    if shapes != others:
        return True
    return bool((logits - wanted).abs().max() > _LEAST * wanted.std())


def _computed(config: PreTrainedConfig, longest: int) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the shapes of a twin's weights, and its logits for the longest text."""
    twin = Twin.of(config, longest)
    torch.manual_seed(0)  # vectors are near what a class begins with, which may be drawn
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = model_class._from_config(twin.config, dtype=torch.float32).eval()
    randomise(model, 0)
    text = torch.tensor([max(twin.texts(), key=len)])
    with torch.inference_mode():
        logits: torch.Tensor = model(text).logits
    return {name: value.shape for name, value in model.state_dict().items()}, logits
