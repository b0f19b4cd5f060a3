"""Drafts for an audit: the tokens that receipts say were chosen.

A step with drafts computes the logits of all of them at once, as a prompt is computed, and the
sampler then chooses each position for itself (`vllm.fork.speculation.DraftChecker`). An answer that
is what its receipt says costs one prefill that way, in pieces, instead of a step for each token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vllm.fork.models.runners import runner_of
from vllm.hf_compat.receipts.resolved_params import CLAIMED_KEY

if TYPE_CHECKING:
    from vllm.config import VllmConfig

TOKENS_PER_STEP = 64
"""As many logits are in memory at once for each answer."""


def speculative_config() -> dict[str, Any]:
    """Return ``speculative_config`` of an engine that audits."""
    return {
        "method": "custom_class",
        "model": f"{__name__}.{ClaimedTokens.__name__}",
        "num_speculative_tokens": TOKENS_PER_STEP,
    }


class ClaimedTokens:
    """A proposer of vLLM's (``custom_class``).

    Args:
        vllm_config: of the engine.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._vllm_config = vllm_config

    def load_model(self, target: object) -> None:
        """Nothing: vLLM's runner of CPUs calls this for all proposers."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Return the next claimed tokens of each request, none once it has chosen another one.

        Args:
            sampled_token_ids: of this step, for each request.
            num_tokens_no_spec: int [num_requests], tokens of prompt and answer.
            token_ids_cpu: int [num_requests, max_model_len], these.
            slot_mappings: not looked at.
        """
        runner = runner_of(self._vllm_config)
        drafts: list[list[int]] = []
        for i, sampled in enumerate(sampled_token_ids):
            request = runner.requests[runner.input_batch.req_ids[i]]
            params = request.sampling_params
            assert params is not None
            claimed: list[int] = (params.extra_args or {}).get(CLAIMED_KEY, [])
            given = token_ids_cpu[i, request.num_prompt_tokens : num_tokens_no_spec[i]].tolist()
            follows = bool(sampled) and claimed[: len(given)] == given
            drafts.append(claimed[len(given) :][:TOKENS_PER_STEP] if follows else [])
        return drafts
