"""The sampler of a worker in deterministic mode; see ``docs/numerics/operations.md``, "Sampling".

A request with a seed draws a token with noise that depends on the seed, the position and the token
ids alone. vLLM's own logits processors and penalties stay: they are sums, products and comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm.config.model import LogprobsMode
from vllm.fork.on_device import on_device
from vllm.fork_kernels.portable.logits import portable_argmax, portable_log_softmax
from vllm.fork_kernels.portable.sampling import portable_draw, portable_filter
from vllm.hf_layers.ordered_logprobs import OrderedLogprobs
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_GREEDY_BELOW = 1e-5
"""Temperatures that vLLM takes for 0."""


class PortableSampler(OrderedLogprobs):
    """``Sampler`` of vLLM with specified choices, draws and logprobs.

    Args:
        runner: whose batch it is.
        upstream: what vLLM made.
    """

    def __init__(self, runner: GPUModelRunner, upstream: Sampler) -> None:
        super().__init__(upstream.logprobs_mode, upstream.use_fp64_gumbel)
        self._runner = runner
        self._positions = torch.empty(0, dtype=torch.int64)  # of the tokens that are chosen next
        self._params: list[Any] = []  # of the requests of the batch

    def follow_batch(self, num_drafts: Sequence[int]) -> list[CachedRequestState]:
        """Read and return the requests of the runner's batch, before its step.

        Args:
            num_drafts: of each request in this step.
        """
        runner = self._runner
        requests = [runner.requests[req_id] for req_id in runner.input_batch.req_ids]
        if not requests:  # vLLM measures the memory of a step with logits of nobody
            self._positions = torch.zeros(len(num_drafts), dtype=torch.int64, device=runner.device)
            self._params = [SamplingParams()] * len(num_drafts)
            return requests
        lengths = runner.seq_lens[: len(requests)].long()
        self._positions = lengths - on_device(num_drafts, lengths.device)
        self._params = [request.sampling_params for request in requests]
        return requests

    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: LogprobsMode | None = None,
    ) -> SamplerOutput:
        """Choose one token for each request of the runner's batch (``Sampler.forward``)."""
        self.follow_batch([0] * len(logits))
        return super().forward(
            logits, sampling_metadata, predict_bonus_token, logprobs_mode_override
        )

    def step(
        self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, discarded: np.ndarray
    ) -> SamplerOutput:
        """Choose the next token of each request, then the ones after them.

        Args:
            logits: [num_requests, vocab_size].
            sampling_metadata: of the batch.
            discarded: bool [num_requests]; a token that is thrown away costs nothing here.
        """
        output = super().forward(logits, sampling_metadata)
        self._positions += 1
        return output

    def ended(self, token_ids: np.ndarray, discarded: np.ndarray) -> np.ndarray:
        """Return bool [num_requests], all False: the scheduler sees where a request ends."""
        return np.zeros(len(token_ids), dtype=bool)

    def sample(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        logprobs_mode_override: LogprobsMode | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Choose tokens of processed logits (``Sampler.sample``).

        Args:
            logits: float32 [num_requests, vocab_size].
            sampling_metadata: of the batch.
            logprobs_mode_override: as in ``Sampler.sample``.

        Returns:
            Token ids int64 [num_requests], and what a mode of processed logprobs returns, float32
            [num_requests, vocab_size].
        """
        mode = logprobs_mode_override or self.logprobs_mode
        if not sampling_metadata.all_greedy:
            logits = self._filtered(logits, sampling_metadata)
        processed = None
        if mode == "processed_logits":
            processed = logits
        elif mode == "processed_logprobs":
            processed = self.compute_logprobs(logits)
        if sampling_metadata.all_greedy:
            return self.greedy_sample(logits), processed
        return self._drawn(logits, sampling_metadata), processed

    def _filtered(self, logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        """Return logits by their temperatures, without what min_p, top_k and top_p remove."""
        count = len(logits)
        for processor in metadata.logitsprocs.argmax_invariant:
            if not isinstance(processor, MinPLogitsProcessor):
                logits = processor.apply(logits)
        all_tokens = torch.zeros(count, dtype=torch.int32, device=logits.device)
        everything = torch.ones(count, device=logits.device)
        return portable_filter(
            logits,
            _temperatures(metadata),
            all_tokens if metadata.top_k is None else metadata.top_k.int().contiguous(),
            everything if metadata.top_p is None else metadata.top_p.float().contiguous(),
            on_device([params.min_p for params in self._params], logits.device, torch.float32),
        )

    def _drawn(self, logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        """Draw a token of each row; one without a seed has one for this step."""
        seeds = [
            # Not a request's bits but the engine's: nobody asked to see them again.
            int(torch.randint(1 << 62, ())) if params.seed is None else params.seed
            for params in self._params
        ]
        drawn = portable_draw(logits, on_device(seeds, logits.device), self._positions)
        is_greedy = _temperatures(metadata) == 0
        # A row without a finite maximum has no distribution.
        return torch.where(is_greedy | (drawn < 0), self.greedy_sample(logits), drawn)

    @staticmethod
    def greedy_sample(logits: torch.Tensor) -> torch.Tensor:
        """Return the first of the largest logits of each row, int64 [num_requests]."""
        return portable_argmax(logits)

    @staticmethod
    def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities, float32 [num_tokens, vocab_size]."""
        return portable_log_softmax(logits)


def _temperatures(metadata: SamplingMetadata) -> torch.Tensor:
    """Return float32 [num_requests], 0 where a request is greedy."""
    assert metadata.temperature is not None
    temperatures = metadata.temperature.float()
    return torch.where(temperatures < _GREEDY_BELOW, 0.0, temperatures).contiguous()
