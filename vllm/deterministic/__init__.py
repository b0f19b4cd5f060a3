"""Deterministic mode: logits whose bits depend on the model and the tokens alone.

The arithmetic is specified in ``docs/numerics``.

* :mod:`.rope`, :mod:`.rope_config` - the frequencies of rotary embeddings.
* :mod:`.guard` - refuses operations whose bits differ between machines.
* :mod:`.attached` - the kernels under a model of Transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["attach"]


def attach(model: PreTrainedModel, *, max_length: int | None = None) -> PreTrainedModel:
    """Put the kernels of deterministic mode under a Transformers model, in place.

    See :func:`.attached.model.attach_kernels`, which this calls.
    """
    from .attached.model import attach_kernels

    return attach_kernels(model, max_length=max_length)
