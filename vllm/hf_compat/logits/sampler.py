"""The sampler of a worker in hf_compat: vLLM's, with HF's processors, arithmetic and draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm.config.model import LogprobsMode
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.models.runners import remember_runner
from vllm.fork.on_device import on_device
from vllm.fork_kernels.portable.logits import portable_log_softmax
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.logits.batch import Batch, Group, Rows
from vllm.hf_compat.logits.beam_search import BeamSearch
from vllm.hf_compat.logits.draws import NoProbabilityError, draw_tokens
from vllm.hf_compat.logits.forbidden_tokens import ForbiddenTokens
from vllm.hf_compat.logits.pipeline import DEVICE_ERRORS
from vllm.hf_compat.receipts.logits_digests import LogitsDigests
from vllm.hf_compat.rows.row_ids import prompt_length
from vllm.hf_compat.texts.stopping import criteria_of_search
from vllm.hf_layers.ordered_logprobs import OrderedLogprobs
from vllm.logger import init_logger
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

logger = init_logger(__name__)


def hf_sampler(runner: GPUModelRunner, upstream: Sampler) -> HFSampler:
    """Return the sampler of `runner` in hf_compat, which stands in for `upstream`."""
    remember_runner(runner, prompt_length)
    return HFSampler(runner, upstream)


def take_outputs(sampler: Sampler) -> dict[str, dict[str, Any]] | None:
    """Return what requests of hf_compat answer beside tokens in this step; None without any."""
    return sampler.take_outputs() if isinstance(sampler, HFSampler) else None


class HFSampler(OrderedLogprobs):
    """Chooses tokens as HF does; vLLM's own processors, which HF does not have, come before."""

    def __init__(self, runner: GPUModelRunner, upstream: Sampler) -> None:
        super().__init__(upstream.logprobs_mode, upstream.use_fp64_gumbel)
        self._runner = runner
        if ForkFlags.of(runner.vllm_config).is_portable:
            self.compute_logprobs = portable_log_softmax  # as deterministic mode's own sampler
        self._batch = Batch(
            runner.max_num_reqs,
            runner.model_config.get_vocab_size(),
            runner.max_model_len,
            runner.model_config.hf_config,
            runner.device,
            runner.model_config.dtype,
        )
        self._discarded = np.zeros(0, dtype=bool)  # rows whose token is thrown away
        self._searches: dict[str, BeamSearch] = {}
        self._outputs: dict[str, dict[str, Any]] = {}
        self._digests = LogitsDigests(runner)
        self._forbidden = ForbiddenTokens(runner)

    def take_outputs(self) -> dict[str, dict[str, Any]] | None:
        """Return what requests answer beside tokens in this step; None without any.

        That is ``beam_step``, a `BeamStep`, for a beam search, and ``scores`` and ``logits``, for
        each token the bytes of float32 [vocab_size], for requests with ``output_scores`` and
        ``output_logits``, and ``error``, a sentence, for a request that generate() fails on; with
        receipts what `LogitsDigests` takes.
        """
        outputs, self._outputs = self._outputs, {}
        return outputs or None

    def follow_batch(self, num_drafts: Sequence[int] = ()) -> list[CachedRequestState]:
        """Read and return the requests of the runner's batch, before its step."""
        runner = self._runner
        requests = [runner.requests[req_id] for req_id in runner.input_batch.req_ids]
        self._batch.update(requests, runner.requests)
        for ended in [search for search in self._searches if search not in runner.requests]:
            del self._searches[ended]
        return requests

    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: LogprobsMode | None = None,
    ) -> SamplerOutput:
        """Choose one token for each request of the runner's batch (``Sampler.forward``)."""
        self.follow_batch()
        # Tokens of prompts that are not complete yet are thrown away.
        discarded = self._runner.discard_request_mask.np[: len(logits)]
        return self.step(logits, sampling_metadata, discarded)

    def step(
        self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, discarded: np.ndarray
    ) -> SamplerOutput:
        """Choose the next token of each request.

        Args:
            logits: [num_requests, vocab_size].
            sampling_metadata: of the batch.
            discarded: bool [num_requests], whether a row's token is thrown away: it draws nothing,
                and its request stays as it is.
        """
        self._discarded = discarded
        self._digests.take(logits, discarded, self._outputs)
        output = super().forward(logits, sampling_metadata)
        self._batch.append(output.sampled_token_ids.view(-1), discarded)
        return output

    def ended(self, token_ids: np.ndarray, discarded: np.ndarray) -> np.ndarray:
        """Return bool [num_requests]: whether the token of a step was a request's last.

        Args:
            token_ids: int [num_requests], of the step.
            discarded: as in `step`.
        """
        ended = self._batch.ended(token_ids)
        for i, req_id in enumerate(self._runner.input_batch.req_ids):
            ended[i] |= "error" in self._outputs.get(req_id, {})
        return ended & ~discarded

    def sample(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        logprobs_mode_override: LogprobsMode | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Apply HF's processors and choose (``Sampler.sample``, which sees greedy requests only).

        A request for which vLLM's own fields, or they and HF's, leave no token ends with a reason.

        Args:
            logits: float32 [num_requests, vocab_size], changed in place.
            sampling_metadata: of the batch.
            logprobs_mode_override: as in ``Sampler.sample``.

        Returns:
            Token ids int64 [num_requests], and logprobs if the mode asks for processed ones.
        """
        forbidden = self._forbidden.of_step(logits, self._discarded)
        token_ids, processed = self._sample(logits, sampling_metadata, logprobs_mode_override)
        for req_id, sentence in (forbidden.errors(token_ids) if forbidden else {}).items():
            logger.error("hf_compat: request %s failed: %s", req_id, sentence)
            self._outputs[req_id] = {"error": sentence}
        return token_ids, processed

    def _sample(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        logprobs_mode_override: LogprobsMode | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self._batch:
            return super().sample(logits, sampling_metadata, logprobs_mode_override)
        chosen: list[tuple[Group, torch.Tensor]] = []
        for group in self._batch.groups:
            if group.pipeline is None:
                continue
            rows = self._batch.rows_of(group, self._discarded)
            if all(rows.discarded):
                continue  # processors of the caller may count the tokens they are asked for
            try:
                logits, tokens = self._choose(group, rows, logits)
            except DEVICE_ERRORS:
                raise
            except Exception as error:
                self._end(group, rows, dict.fromkeys(range(len(rows.states)), error))
                tokens = torch.zeros_like(group.places)
            if tokens is not None:
                chosen.append((group, tokens))
        if len(chosen) == len(self._batch.groups) and not _wants_logprobs(sampling_metadata):
            token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
            processed = None
        else:
            token_ids, processed = super().sample(logits, sampling_metadata, logprobs_mode_override)
        for group, tokens in chosen:
            token_ids[group.places] = tokens.to(token_ids)
        for group in self._batch.groups:
            if group.guides:
                token_ids[group.guide_places] = token_ids[group.places]
        return token_ids, processed

    def _choose(
        self, group: Group, rows: Rows, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Process a group's rows of the logits; return all logits, and tokens unless greedy."""
        assert group.pipeline is not None
        if group.search is not None:
            return logits, self._advance(group, rows, logits)
        is_all = len(group.indices) == len(logits)
        if group.guides:
            rows = replace(rows, unguided=logits[group.guide_places])
        if group.pipeline.returns_logits:
            self._keep("logits", group, rows, logits[group.places])
        scores, errors = group.pipeline.process(rows, logits if is_all else logits[group.places])
        if group.pipeline.returns_scores:
            self._keep("scores", group, rows, scores)
        tokens = None
        if group.pipeline.do_sample:
            tokens, without_probability = draw_tokens(rows, scores)
            errors = without_probability | errors
        self._end(group, rows, errors)
        if is_all:
            return scores, tokens
        logits[group.places] = scores
        return logits, tokens

    def _end(self, group: Group, rows: Rows, errors: dict[int, Exception]) -> None:
        """End the requests of the rows that failed, with what they failed on; others go on."""
        req_ids = self._runner.input_batch.req_ids
        for row, error in errors.items():
            if rows.discarded[row]:
                continue
            req_id = group.search or req_ids[group.indices[row]]
            logger.error("hf_compat: request %s failed", req_id, exc_info=error)
            self._outputs[req_id] = {"error": _sentence(rows.states[row].request, error)}

    def _advance(self, group: Group, rows: Rows, logits: torch.Tensor) -> torch.Tensor:
        """Take a step of a beam search; return the tokens of its rows."""
        assert group.pipeline is not None
        assert group.search is not None
        state = rows.states[0]
        if state.num_outputs == 0:  # the prompt's only row stands for all beams
            self._searches[group.search] = self._new_search(state.request, state.known_prompt)
        search = self._searches[group.search]
        beams = group.places
        if state.num_outputs == 0:
            beams, rows = beams.repeat(search.num_beams), rows.select([0] * search.num_beams)
        scores = group.pipeline(rows, logits[beams].log_softmax(dim=-1))
        if group.pipeline.returns_logits:
            search.keep("logits", logits[beams])
        if group.pipeline.returns_scores:
            search.keep("scores", scores)
        step = search.advance(scores)
        self._outputs[group.search] = {"beam_step": step}
        return on_device(step.tokens[: len(group.indices)], logits.device)

    def _keep(self, name: str, group: Group, rows: Rows, values: torch.Tensor) -> None:
        """Make the rows of `values` part of their requests' answers."""
        req_ids = self._runner.input_batch.req_ids
        for i, is_discarded, row in zip(
            group.indices, rows.discarded, values.float().cpu().numpy(), strict=True
        ):
            if not is_discarded:
                answer = self._outputs.setdefault(req_ids[i], {})
                answer.setdefault(name, []).append(row.tobytes())

    def _new_search(self, request: Any, prompt: list[int]) -> BeamSearch:
        criteria = criteria_of_search(request, self._runner.model_config)
        return BeamSearch(request, prompt, criteria, self._runner.device)


def _wants_logprobs(sampling_metadata: SamplingMetadata) -> bool:
    return sampling_metadata.max_num_logprobs is not None or bool(
        sampling_metadata.logprob_token_ids
    )


def _sentence(request: HFRequest, error: Exception) -> str:
    """Return what a client reads about the end of its request."""
    if isinstance(error, NoProbabilityError):
        return str(error)
    reason = f"{type(error).__name__}: {error}"
    if (
        request.pickled is not None or request.criteria is not None
    ):  # perhaps an object of the caller's
        return reason
    return f"Transformers fails on {request.fields!s:.500} with {reason}."
