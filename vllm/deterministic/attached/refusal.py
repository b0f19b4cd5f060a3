"""How it is said that a model cannot have deterministic mode's kernels."""

from __future__ import annotations


def refusal(what: str, why: str) -> ValueError:
    """Return the error for a part of a model, or the whole, and the reason."""
    return ValueError(f"vllm.deterministic.attach cannot take {what}: {why}.")
