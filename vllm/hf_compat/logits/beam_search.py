"""Beam search and beam sampling on the processed scores of one request's beams.

The steps are Transformers' own methods (``GenerationMixin._get_top_k_continuations``,
``_get_running_beams_for_next_iteration``, ``_update_finished_beams``,
``_check_early_stop_heuristic``, ``_beam_search_has_unfinished_sequences``), called in the order and
with the tensors of ``GenerationMixin._beam_search`` for a batch of one prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationMixin
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from vllm.fork.on_device import on_device
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.logits.draws import NoProbabilityError
from vllm.hf_compat.rows.beam_step import BeamStep

_NEVER = -1e9  # HF's score of what cannot be chosen


class BeamSearch:
    """The state of one search.

    Args:
        request: with ``num_beams`` and its other fields.
        prompt: token ids.
        criteria: HF's stopping criteria beyond length and end of sequence.
        device: where the scores are.
    """

    def __init__(
        self,
        request: HFRequest,
        prompt: list[int],
        criteria: list[StoppingCriteria],
        device: torch.device,
    ) -> None:
        fields = request.fields
        eos = request.eos_token_ids
        self.num_beams: int = fields["num_beams"]
        self._num_returned: int = fields.get("num_return_sequences", 1)
        self._do_sample: bool = fields.get("do_sample", False)
        self._length: dict[str, Any] = {
            "length_penalty": fields["length_penalty"],
            "early_stopping": fields.get("early_stopping"),
            "decoder_prompt_len": len(prompt),
        }
        self._max_length = request.max_length
        self._num_kept = max(2, 1 + len(eos)) * self.num_beams
        self._see_scores = request.criteria_see_scores
        self._criteria = StoppingCriteriaList([MaxLengthCriteria(request.max_length), *criteria])
        if eos:
            self._criteria.append(EosTokenCriteria(on_device(eos, device)))
        self._generator = _Generator(request.seed, device)
        self._cur_len = len(prompt)
        self._kept: dict[str, list[torch.Tensor]] = {}
        self._init_tensors(prompt, device)

    def _init_tensors(self, prompt: list[int], device: torch.device) -> None:
        shape = (1, self.num_beams)
        self._running = torch.zeros(*shape, self._max_length, dtype=torch.int64, device=device)
        self._running[:, :, : len(prompt)] = on_device(prompt, device)
        self._sequences = self._running.clone()
        # Only the first of the equal beams counts, or all of them would continue alike.
        self._running_scores = torch.full(shape, _NEVER, device=device)
        self._running_scores[:, 0] = 0.0
        self._scores = torch.full(shape, _NEVER, device=device)
        self._is_finished = torch.zeros(shape, dtype=torch.bool, device=device)
        self._can_improve = torch.ones(1, 1, dtype=torch.bool, device=device)
        num_new = self._max_length - len(prompt)
        self._running_indices = torch.full((*shape, num_new), -1, dtype=torch.int32, device=device)
        self._indices = self._running_indices.clone()
        self._is_top = torch.arange(self._num_kept, device=device) < self.num_beams

    def keep(self, name: str, values: torch.Tensor) -> None:
        """Keep a step's float32 [num_beams, vocab_size] for the answer."""
        self._kept.setdefault(name, []).append(values.clone())

    def advance(self, scores: torch.Tensor) -> BeamStep:
        """Choose the next beams.

        Args:
            scores: float32 [num_beams, vocab_size], processed log-probabilities of the running
                beams.

        Raises:
            NoProbabilityError: there is nothing to draw.
        """
        accumulated = (scores[None] + self._running_scores[:, :, None]).reshape(1, -1)
        if self._do_sample and not accumulated.softmax(dim=-1).sum().isfinite():
            raise NoProbabilityError
        with self._generator.borrowed():
            top_scores, top_sequences, top_indices = _HF._get_top_k_continuations(
                accumulated_log_probs=accumulated,
                running_sequences=self._running,
                running_beam_indices=self._running_indices,
                cur_len=self._cur_len,
                decoder_prompt_len=self._length["decoder_prompt_len"],
                do_sample=self._do_sample,
                beams_to_keep=self._num_kept,
                num_beams=self.num_beams,
                batch_size=1,
            )
        seen = tuple(self._kept.get("scores", ())) if self._see_scores else None
        ended = self._criteria(top_sequences[0, :, : self._cur_len + 1], seen)[None]
        self._running, self._running_scores, self._running_indices = (
            _HF._get_running_beams_for_next_iteration(
                topk_log_probs=top_scores,
                topk_running_sequences=top_sequences,
                topk_running_beam_indices=top_indices,
                next_token_hits_stopping_criteria=ended,
                num_beams=self.num_beams,
            )
        )
        self._sequences, self._scores, self._indices, self._is_finished = (
            _HF._update_finished_beams(
                sequences=self._sequences,
                topk_running_sequences=top_sequences,
                beam_scores=self._scores,
                topk_log_probs=top_scores,
                beam_indices=self._indices,
                topk_running_beam_indices=top_indices,
                is_early_stop_heuristic_unsatisfied=self._can_improve,
                is_sent_finished=self._is_finished,
                next_token_hits_stopping_criteria=ended,
                top_num_beam_mask=self._is_top,
                num_beams=self.num_beams,
                cur_len=self._cur_len,
                **self._length,
            )
        )
        return self._step(ended)

    def _step(self, ended: torch.Tensor) -> BeamStep:
        """Decide whether the search goes on, and report."""
        last = self._cur_len
        self._cur_len += 1
        self._can_improve = _HF._check_early_stop_heuristic(
            is_early_stop_heuristic_unsatisfied=self._can_improve,
            running_beam_scores=self._running_scores,
            beam_scores=self._scores,
            is_sent_finished=self._is_finished,
            cur_len=self._cur_len,
            max_length=self._max_length,
            **self._length,
        )
        goes_on = _HF._beam_search_has_unfinished_sequences(
            self._can_improve, self._is_finished, ended, self._length["early_stopping"]
        )
        prompt_len = self._length["decoder_prompt_len"]
        return BeamStep(
            tokens=self._running[0, :, last].tolist(),
            parents=self._running_indices[0, :, last - prompt_len].tolist(),
            finished=None if bool(goes_on) else self._best(prompt_len),
        )

    def _best(self, prompt_len: int) -> list[dict[str, Any]]:
        """Return the sequences that `generate()` returns, each to its own end.

        Their scores and logits are those of the beams that they went along.
        """
        answers = []
        for i in range(self._num_returned):
            path = [beam for beam in self._indices[0, i].tolist() if beam >= 0]
            tokens = self._sequences[0, i, prompt_len : prompt_len + len(path)].tolist()
            answer = {"token_ids": tokens, "score": float(self._scores[0, i])}
            for name, steps in self._kept.items():
                rows = [step[beam] for step, beam in zip(steps, path, strict=False)]
                answer[name] = [row.cpu().numpy().tobytes() for row in rows]
            answers.append(answer)
        return answers


class _Methods(GenerationMixin):
    """HF's methods, of which beam search asks nothing of a model."""


_HF: Any = _Methods()


class _Generator:
    """The global generator as one search finds it, which HF's methods draw from.

    Args:
        seed: of ``torch.manual_seed`` before the search; None leaves the global generator alone.
        device: of the scores.
    """

    def __init__(self, seed: int | None, device: torch.device) -> None:
        self._default = (
            torch.cuda.default_generators[device.index or 0]
            if device.type == "cuda"
            else torch.default_generator
        )
        self._state = (
            None if seed is None else torch.Generator(device).manual_seed(seed).get_state()
        )

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Let the search draw from the global generator, and put that back."""
        if self._state is None:
            yield
            return
        others = self._default.get_state()
        self._default.set_state(self._state)
        try:
            yield
            self._state = self._default.get_state()
        finally:
            self._default.set_state(others)
