"""Deterministic mode: logits whose bits depend on the model and the tokens alone.

The arithmetic is specified in ``docs/numerics``.

* :mod:`.engine_args` - what it asks of an engine.
* :mod:`.layers` - gives each layer of a model its portable form: :mod:`.linear` (with
  :mod:`.equalisation`), :mod:`.norms`, :mod:`.activations` and :mod:`.elementwise`,
  :mod:`.attention`, :mod:`.latent_attention`, :mod:`.gates`, :mod:`.parallel_branches`,
  :mod:`.states`, :mod:`.positions`, :mod:`.mixtures`, :mod:`.lora`, :mod:`.logits`,
  :mod:`.transformers_backend`.
* :mod:`.fusion` - finds the product that takes a norm's digits.
* :mod:`.decoder` - computes all layers of some models as one operator on CPUs;
  :mod:`.decoder_layers` says of which.
* :mod:`.check` - what is checked before an engine answers: :mod:`.self_check`, this machine's bits;
  :mod:`.guard`, that nothing else is computed. :mod:`.refusal` - how it says what it cannot.
* :mod:`.sampler` - draws.
* :mod:`.attached` - the kernels under a model of Transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["NUMERICS_VERSION", "attach", "token_log_probs"]

NUMERICS_VERSION = 1
"""Of the arithmetic in ``docs/numerics``: another one gives other bits."""


def attach(
    model: PreTrainedModel, *, max_length: int | None = None, training: bool = False
) -> PreTrainedModel:
    """Put the kernels of deterministic mode under a Transformers model, in place.

    Args:
        model: see :func:`.attached.model.attach_kernels`, which this calls, or with
            ``training=True`` :func:`.attached.model.attach_for_training`.
        max_length: likewise.
        training: whether the model is to be trained. Its parameters stay then, and logits have
            gradients; the packed weights are memory on top.
    """
    from .attached.model import attach_for_training, attach_kernels

    return (attach_for_training if training else attach_kernels)(model, max_length=max_length)


def token_log_probs(
    model: Any,
    input_ids: torch.Tensor,
    *,
    attention_mask: torch.Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    logits_to_keep: int | None = None,
) -> torch.Tensor:
    """Return the log-probabilities of tokens, digit for digit the engine's, with gradients.

    See :func:`.attached.log_probs.log_probs_of_tokens`, which this calls.
    """
    from .attached.log_probs import log_probs_of_tokens

    return log_probs_of_tokens(
        model,
        input_ids,
        attention_mask=attention_mask,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        logits_to_keep=logits_to_keep,
    )
