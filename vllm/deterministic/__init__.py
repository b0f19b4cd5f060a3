"""Deterministic mode: logits whose bits depend on the model and the tokens alone.

The arithmetic is specified in ``docs/numerics``.

* :mod:`.engine_args` - what it asks of an engine.
* :mod:`.layers` - gives each layer of a model its portable form: :mod:`.linear` (with
  :mod:`.equalisation`), :mod:`.norms`, :mod:`.activations` and :mod:`.elementwise`,
  :mod:`.attention`, :mod:`.positions`, :mod:`.mixtures`, :mod:`.lora`, :mod:`.logits`,
  :mod:`.transformers_backend`.
* :mod:`.fusion` - finds the product that takes a norm's digits.
* :mod:`.check` - what is checked before an engine answers: :mod:`.self_check`, this machine's bits;
  :mod:`.guard`, that nothing else is computed. :mod:`.refusal` - how it says what it cannot.
* :mod:`.sampler` - draws.
* :mod:`.attached` - the kernels under a model of Transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["NUMERICS_VERSION", "attach"]

NUMERICS_VERSION = 1
"""Of the arithmetic in ``docs/numerics``: another one gives other bits."""


def attach(model: PreTrainedModel, *, max_length: int | None = None) -> PreTrainedModel:
    """Put the kernels of deterministic mode under a Transformers model, in place.

    See :func:`.attached.model.attach_kernels`, which this calls.
    """
    from .attached.model import attach_kernels

    return attach_kernels(model, max_length=max_length)
