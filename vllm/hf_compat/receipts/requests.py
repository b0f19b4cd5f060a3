"""Which requests can have a receipt, and what it says of their engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    import torch

    from vllm.config import VllmConfig
    from vllm.hf_compat.call.request import HFRequest


def engine_of_receipts(vllm_config: VllmConfig) -> dict[str, Any] | None:
    """Return what receipts say of an engine; None if it makes none.

    Args:
        vllm_config: of the engine.

    Returns:
        ``model``, its name, and ``flags``, all that changes bits beside the model: rotary
        embeddings of some models depend on ``max_model_len``.
    """
    if not ForkFlags.of(vllm_config).receipts:
        return None
    model_config = vllm_config.model_config
    flags = {
        "dtype": str(model_config.dtype).removeprefix("torch."),
        "max_model_len": model_config.max_model_len,
    }
    return {"model": model_config.model, "flags": flags}


def check_receipt(
    request: HFRequest, params: SamplingParams, prompt_embeds: torch.Tensor | None
) -> None:
    """Refuse a receipt that nobody could check.

    Args:
        request: that wants one.
        params: its other parameters.
        prompt_embeds: of a prompt that is given as embeddings.

    Raises:
        VLLMValidationError: names the reason.
    """
    reasons = {
        "sampling without a seed": request.fields.get("do_sample") and request.seed is None,
        f"num_beams={request.num_beams}": request.num_beams > 1,
        "guidance_scale": request.is_guided,
        "max_time": request.max_time is not None,
        "processors, callbacks or criteria of your own": request.pickled or request.criteria,
        "prompt_embeds": prompt_embeds is not None,
        "logit_bias": params.logit_bias,  # vLLM has none beside drafts (sequence_bias has)
    }
    for name, is_given in reasons.items():
        if is_given:
            raise VLLMValidationError(
                f"An answer with {name} has no receipt, since nobody could compute it again from "
                "one: leave it out, or ask for no receipt.",
                parameter="receipt",
            )
    if params.output_kind == RequestOutputKind.DELTA:
        raise VLLMValidationError(
            "A receipt comes with a whole answer, and not with parts of one: leave stream or the "
            "receipt out.",
            parameter="receipt",
        )
