"""The tokens that each running request has seen: the state of HF's repetition penalty.

HF's ``RepetitionPenaltyLogitsProcessor`` looks at the whole ``input_ids`` of a sequence in every
step. Here a request's prompt is written once, when it enters the batch, into a bit mask over the
vocabulary; after that each step sets one bit, on the device, without reading tokens back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from vllm.fork_ops.seen_tokens import (
    apply_repetition_penalty,
    mark_seen_tokens,
    num_mask_words,
)
from vllm.hf_compat.request import HFRequest

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

_NO_SLOT = -1  # row of a request without a penalty; the ops skip it


@dataclass(eq=False, slots=True)
class _History:
    """A request's row in the table, and what it was built from.

    Attributes:
        slot: the row.
        penalty: HF's ``repetition_penalty``.
        prompt_token_ids: the very list that the request had.
        output_token_ids: likewise.
        num_outputs: how many output tokens are marked.
    """

    slot: int
    penalty: float
    prompt_token_ids: list[int] | None
    output_token_ids: list[int]
    num_outputs: int

    def continues(self, request: CachedRequestState) -> bool:
        """Whether `request` still consists of what is marked.

        vLLM replaces or shortens a list when it rewinds or extends a request behind the sampler's
        back (resumption after preemption, streaming input, lost KV blocks); otherwise it appends
        to it what was sampled.
        """
        return (
            self.prompt_token_ids is request.prompt_token_ids
            and self.output_token_ids is request.output_token_ids
            and self.num_outputs == len(request.output_token_ids)
        )


class SeenTokens:
    """Bit masks of the tokens seen by the requests of a worker.

    A request keeps its mask while it waits for a place in the batch: under async scheduling its
    last tokens are on the device only, and could not be read again.

    Args:
        num_slots: rows of the table at first; it grows when more requests are alive.
        vocab_size: width of the logits.
        device: where the logits are.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        words = num_mask_words(vocab_size)
        self._mask = torch.zeros(num_slots, words, dtype=torch.int32, device=device)
        self._free_slots = list(range(num_slots))
        self._histories: dict[str, _History] = {}
        self._batch: list[_History | None] = []
        self._slots = torch.empty(0, dtype=torch.int32, device=device)
        self._penalties = torch.empty(0, dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self._histories)

    def update_batch(
        self, batch_requests: Sequence[CachedRequestState], alive: Collection[str]
    ) -> None:
        """Follow the batch: read the tokens of requests that are new, forget those that ended.

        Args:
            batch_requests: the batch's requests in the order of the logits' rows.
            alive: ids of all requests that have not ended, in the batch or not.
        """
        for req_id in [req_id for req_id in self._histories if req_id not in alive]:
            self._free_slots.append(self._histories.pop(req_id).slot)
        batch = [self._history_of(request) for request in batch_requests]
        if batch != self._batch:
            self._batch = batch
            self._slots = self._tensor([h.slot if h else _NO_SLOT for h in batch], torch.int32)
            self._penalties = self._tensor([h.penalty if h else 1.0 for h in batch], torch.float32)

    def apply_penalty(self, logits: torch.Tensor) -> None:
        """Apply HF's repetition penalty in place.

        Args:
            logits: float32 [num_requests, vocab_size], rows as in `update_batch`.
        """
        if self._histories:
            apply_repetition_penalty(logits, self._mask, self._slots, self._penalties)

    def append(self, token_ids: torch.Tensor, discarded: np.ndarray) -> None:
        """Add the tokens of this step to the requests that keep them.

        Args:
            token_ids: int32 or int64 [num_requests], rows as in `update_batch`.
            discarded: bool [num_requests], True where the token is thrown away because the
                prompt is not complete yet.
        """
        if not self._histories:
            return
        for history, is_discarded in zip(self._batch, discarded, strict=True):
            if history is not None and not is_discarded:
                history.num_outputs += 1
        slots = self._slots
        if discarded.any():
            slots = slots.masked_fill(self._tensor(discarded, torch.bool), _NO_SLOT)
        mark_seen_tokens(self._mask, slots, token_ids)

    def _history_of(self, request: CachedRequestState) -> _History | None:
        history = self._histories.get(request.req_id)
        if history is not None and history.continues(request):
            return history
        penalty = HFRequest.of(request.sampling_params).repetition_penalty
        if penalty == 1.0:
            return None
        slot = self._take_slot() if history is None else history.slot
        self._rebuild(slot, request)
        outputs = request.output_token_ids
        history = _History(slot, penalty, request.prompt_token_ids, outputs, len(outputs))
        self._histories[request.req_id] = history
        return history

    def _take_slot(self) -> int:
        if not self._free_slots:
            size = len(self._mask)
            self._mask = torch.cat([self._mask, torch.zeros_like(self._mask)])
            self._free_slots = list(range(size, 2 * size))
        return self._free_slots.pop()

    def _rebuild(self, slot: int, request: CachedRequestState) -> None:
        self._mask[slot].zero_()
        token_ids = np.asarray([*_prompt_tokens(request), *request.output_token_ids], np.int32)
        if (token_ids < 0).any():
            raise RuntimeError(
                f"request {request.req_id} entered the batch with tokens that are not known yet; "
                "its repetition penalty cannot be computed"
            )
        slots = torch.full((len(token_ids),), slot, dtype=torch.int32, device=self._mask.device)
        mark_seen_tokens(self._mask, slots, self._tensor(token_ids, torch.int32))

    def _tensor(
        self, values: list[int] | list[float] | np.ndarray, dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.as_tensor(values, dtype=dtype).to(self._mask.device, non_blocking=True)


def _prompt_tokens(request: CachedRequestState) -> list[int]:
    """Return the prompt's token ids; positions given as embeddings have none, as in HF."""
    if request.prompt_token_ids is None:
        return []
    if request.prompt_is_token_ids is None:
        return request.prompt_token_ids
    positions = zip(request.prompt_token_ids, request.prompt_is_token_ids, strict=True)
    return [token for token, is_token in positions if is_token]
