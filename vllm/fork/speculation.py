"""Speculative decoding: of the drafts, those that the sampler chooses itself.

vLLM's rejection sampler keeps the distribution of tokens. The tokens for a seed are one sample of
it, and processors depend on every token before. So here each position of the drafts is an
ordinary step of the sampler: it chooses its token, with its own draw, and the next position counts
if that is the draft's. No draw is spent on a draft, and the answer is the one without drafts,
whoever made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from vllm.fork.on_device import on_device
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_NO_TOKEN = -1  # as in `RejectionSampler.parse_output`


class StepSampler(Protocol):
    """A sampler that chooses one token of each request, position by position."""

    def follow_batch(self, num_drafts: Sequence[int]) -> list[CachedRequestState]:
        """Read and return the requests of the runner's batch, before its step.

        Args:
            num_drafts: of each request in this step.
        """

    def step(
        self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, discarded: np.ndarray
    ) -> SamplerOutput:
        """Choose the next token of each request.

        Args:
            logits: [num_requests, vocab_size].
            sampling_metadata: of the batch.
            discarded: bool [num_requests], whether a row's token is thrown away.
        """

    def ended(self, token_ids: np.ndarray, discarded: np.ndarray) -> np.ndarray:
        """Return bool [num_requests]: whether the token of a step was a request's last.

        Args:
            token_ids: int [num_requests], of the step.
            discarded: as in `step`.
        """


class DraftChecker:
    """Stands in for ``RejectionSampler``.

    Args:
        runner: whose batch it is.
        sampler: chooses.
    """

    def __init__(self, runner: GPUModelRunner, sampler: StepSampler) -> None:
        self._runner = runner
        self._sampler = sampler

    def __call__(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        """Choose tokens while they are those of the drafts, and one more (``RejectionSampler``).

        Args:
            metadata: the drafts.
            draft_probs: not looked at.
            logits: [num_draft_tokens + num_requests, vocab_size], request by request.
            sampling_metadata: of the batch.

        Returns:
            Token ids int32 [num_requests, max_spec_len + 1], -1 beyond the chosen ones, and
            logprobs in the order of these ids if requests want them.
        """
        drafts, rows = _positions(metadata)
        runner, sampler = self._runner, self._sampler
        requests = sampler.follow_batch(metadata.num_draft_tokens)
        skipped = runner.discard_request_mask.np[: len(drafts)].copy()
        lengths = [len(request.output_token_ids) for request in requests]
        token_ids = np.full(rows.shape, _NO_TOKEN, np.int32)
        logprobs: list[LogprobsTensors | None] = []
        for position in range(rows.shape[1]):
            where = on_device(rows[:, position], logits.device)
            output = sampler.step(logits[where], sampling_metadata, skipped)
            logprobs.append(output.logprobs_tensors)
            chosen = output.sampled_token_ids[:, 0].cpu().numpy()
            # The first token of an incomplete prompt is there too; the runner throws it away.
            token_ids[:, position] = np.where(skipped & (position > 0), _NO_TOKEN, chosen)
            skipped |= sampler.ended(chosen, skipped)
            skipped |= chosen != drafts[:, position]
            if skipped.all():
                break
            _append(requests, skipped, chosen, sampling_metadata)
        for request, length in zip(requests, lengths, strict=True):
            del request.output_token_ids[length:]  # the runner appends them itself
        return SamplerOutput(
            on_device(token_ids, logits.device, torch.int32), _stacked(logprobs, rows.shape[1])
        )


def _positions(metadata: SpecDecodeMetadata) -> tuple[np.ndarray, np.ndarray]:
    """Return the drafts, int64 [num_requests, max_spec_len + 1], -1 where there is none, and the
    rows of the logits that choose these positions, likewise, the last one where there is none.
    """
    counts = np.asarray(metadata.num_draft_tokens, np.int64)[:, None]
    position = np.arange(metadata.max_spec_len + 1)[None]
    drafts = np.full((len(counts), position.size), _NO_TOKEN, np.int64)
    drafts[position < counts] = metadata.draft_token_ids.cpu().numpy()
    first = np.cumsum(counts + 1)[:, None] - (counts + 1)
    return drafts, first + np.minimum(position, counts)


def _append(
    requests: list[CachedRequestState],
    skipped: np.ndarray,
    token_ids: np.ndarray,
    sampling_metadata: SamplingMetadata,
) -> None:
    """Show vLLM's own processors the tokens of the requests that go on."""
    for request, is_skipped, token_id in zip(requests, skipped, token_ids.tolist(), strict=False):
        if not is_skipped:
            request.output_token_ids.append(token_id)
    for processor in sampling_metadata.logitsprocs.all:
        processor.update_state(None)


def _stacked(steps: list[LogprobsTensors | None], num_positions: int) -> LogprobsTensors | None:
    """Return the logprobs of all positions, request by request; those not reached are repeats."""
    found = [step for step in steps if step is not None]
    if not found:
        return None
    found += [found[-1]] * (num_positions - len(found))
    return LogprobsTensors(
        *(
            torch.stack([getattr(step, name) for step in found], dim=1).flatten(0, 1)
            for name in ("logprob_token_ids", "logprobs", "selected_token_ranks")
        )
    )
