"""The sampler of a worker in hf_compat: vLLM's, with HF's arithmetic and state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vllm.config.model import LogprobsMode
from vllm.fork.flags import ForkFlags
from vllm.hf_compat.seen_tokens import SeenTokens
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def sampler_for(runner: GPUModelRunner, upstream: Sampler) -> Sampler:
    """Return the sampler that `runner` uses: `upstream`, or an `HFSampler` in hf_compat."""
    if not ForkFlags.of(runner.vllm_config).hf_compat:
        return upstream
    return HFSampler(runner, upstream)


class HFSampler(Sampler):
    """Applies HF's repetition penalty where vLLM would apply its own."""

    def __init__(self, runner: GPUModelRunner, upstream: Sampler) -> None:
        super().__init__(upstream.logprobs_mode, upstream.use_fp64_gumbel)
        self._runner = runner
        self._seen = SeenTokens(
            runner.max_num_reqs, runner.model_config.get_vocab_size(), runner.device
        )

    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: LogprobsMode | None = None,
    ) -> SamplerOutput:
        """Sample one token for each request of the runner's batch (``Sampler.forward``)."""
        runner = self._runner
        req_ids = runner.input_batch.req_ids
        self._seen.update_batch([runner.requests[req_id] for req_id in req_ids], runner.requests)
        output = super().forward(
            logits, sampling_metadata, predict_bonus_token, logprobs_mode_override
        )
        discarded = runner.discard_request_mask.np[: len(req_ids)]
        self._seen.append(output.sampled_token_ids.view(-1), discarded)
        return output

    def apply_penalties(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        output_token_ids: list[list[int]],
    ) -> torch.Tensor:
        """Apply HF's repetition penalty, then vLLM's own penalties, which HF does not have.

        Args:
            logits: float32 [num_requests, vocab_size], changed in place.
            sampling_metadata: of the batch; its repetition penalties are all off, since
                `Frontend.finish` moved them.
            output_token_ids: as in ``Sampler.apply_penalties``.
        """
        self._seen.apply_penalty(logits)
        return super().apply_penalties(logits, sampling_metadata, output_token_ids)
