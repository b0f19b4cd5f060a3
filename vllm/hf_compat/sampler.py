"""The sampler of a worker in hf_compat: vLLM's, with HF's processors, arithmetic and draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from vllm.config.model import LogprobsMode
from vllm.fork.flags import ForkFlags
from vllm.hf_compat.batch import Batch, Rows
from vllm.hf_compat.draws import draw_tokens
from vllm.hf_compat.pipeline import Pipeline
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
    """Chooses tokens as HF does; vLLM's own processors, which HF does not have, come before."""

    def __init__(self, runner: GPUModelRunner, upstream: Sampler) -> None:
        super().__init__(upstream.logprobs_mode, upstream.use_fp64_gumbel)
        self._runner = runner
        self._batch = Batch(
            runner.max_num_reqs,
            runner.model_config.get_vocab_size(),
            runner.max_model_len,
            runner.model_config.hf_config,
            runner.device,
        )
        self._discarded = np.zeros(0, dtype=bool)

    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: LogprobsMode | None = None,
    ) -> SamplerOutput:
        """Choose one token for each request of the runner's batch (``Sampler.forward``)."""
        runner = self._runner
        req_ids = runner.input_batch.req_ids
        self._batch.update([runner.requests[req_id] for req_id in req_ids], runner.requests)
        self._discarded = runner.discard_request_mask.np[: len(req_ids)]
        output = super().forward(
            logits, sampling_metadata, predict_bonus_token, logprobs_mode_override
        )
        self._batch.append(output.sampled_token_ids.view(-1), self._discarded)
        return output

    def sample(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        logprobs_mode_override: LogprobsMode | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Apply HF's processors and choose (``Sampler.sample``, which sees greedy requests only).

        Args:
            logits: float32 [num_requests, vocab_size], changed in place.
            sampling_metadata: of the batch.
            logprobs_mode_override: as in ``Sampler.sample``.

        Returns:
            Token ids int64 [num_requests], and logprobs if the mode asks for processed ones.
        """
        if not self._batch:
            return super().sample(logits, sampling_metadata, logprobs_mode_override)
        draws: list[tuple[list[int], torch.Tensor]] = []
        for group in self._batch.groups:
            if group.pipeline is None:
                continue
            rows = self._batch.rows_of(group, self._discarded)
            if group.pipeline.do_sample:
                scores = _process(group.pipeline, rows, logits[group.indices])
                draws.append((group.indices, draw_tokens(rows, scores)))
                logits[group.indices] = scores
            elif len(group.indices) == len(logits):
                logits.copy_(group.pipeline(rows, logits))
            else:
                logits[group.indices] = group.pipeline(rows, logits[group.indices])
        token_ids, processed = super().sample(logits, sampling_metadata, logprobs_mode_override)
        for indices, drawn in draws:
            token_ids[indices] = drawn.to(token_ids.dtype)
        return token_ids, processed


def _process(pipeline: Pipeline, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """Process the rows of requests that sample; one that HF refuses (NaN) becomes NaN, alone."""
    try:
        return pipeline(rows, scores.clone())
    except ValueError:
        if len(scores) == 1:
            return torch.full_like(scores, torch.nan)
        rows_alone = ((rows.select([i]), scores[i : i + 1]) for i in range(len(scores)))
        return torch.cat([_process(pipeline, row, score) for row, score in rows_alone])
