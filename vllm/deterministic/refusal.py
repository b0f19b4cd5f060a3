"""How deterministic mode says what it cannot compute."""

from __future__ import annotations

from torch import nn


def refusal(name: str, layer: nn.Module, reason: str) -> ValueError:
    """Return the error that names a layer and the reason why its bits cannot be promised."""
    return ValueError(
        f"deterministic=True cannot compute {name} ({type(layer).__name__}): {reason}. Leave the "
        "flag out, or use another model."
    )


def attach_refusal(what: str, why: str) -> ValueError:
    """Return the error for a part of a model of Transformers, or the whole, and the reason."""
    return ValueError(f"vllm.deterministic.attach cannot take {what}: {why}.")
