"""What a client reads when its request ended in the middle: what was wrong, with it or the weights.

`generate()` would raise. Upstream's server says "Internal server error", with status 500, although
the engine is well and the client alone can change something.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from vllm.exceptions import GracefulHTTPError, VLLMError, VLLMValidationError
from vllm.fork import checked_adapters
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.live_weights.registry import REFUSED
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def no_continuation(num_tokens: int) -> str:
    """Return what is wrong with a grammar that nothing continues after so many tokens."""
    return (
        f"No token continues what structured_outputs allows after {num_tokens} tokens: every rule "
        "of a grammar must come to an end, and its text be writable with the model's tokens."
    )


def failure_of(
    output: RequestOutput, params: SamplingParams, vllm_config: VllmConfig
) -> VLLMError | None:
    """Return what a request has failed on; None if it has not, or if nobody knows.

    Args:
        output: of the request.
        params: with which it came.
        vllm_config: of the engine.
    """
    ended = [one for one in output.outputs if one.finish_reason == "error"]
    if not ended:
        return None
    reason = ended[0].stop_reason
    if isinstance(reason, str) and reason.startswith(REFUSED):
        return GracefulHTTPError(reason, HTTPStatus.SERVICE_UNAVAILABLE)
    if isinstance(reason, str) and reason.startswith(checked_adapters.REFUSED):
        return VLLMValidationError(reason)
    if not ForkFlags.of(vllm_config).hf_compat:
        return None
    if isinstance(reason, str):  # the sampler's sentence
        return VLLMValidationError(reason)
    # Besides a structure that cannot go on, only the transfer of a KV cache ends requests so.
    if params.structured_outputs is not None and vllm_config.kv_transfer_config is None:
        return VLLMValidationError(no_continuation(len(ended[0].token_ids)))
    return None
