"""From tokens to answers: HF's stopping criteria, scores and logits, and beams."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm.hf_compat.call.request import EXTRA_ARGS_KEY, HFRequest
from vllm.hf_compat.texts.stopping import StoppingDetokenizer, WrappedDetokenizer, stop_like_hf
from vllm.hf_compat.texts.whole_texts import WholeText
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine.output_processor import RequestState

_TENSORS = ("scores", "logits")


@dataclass
class HFOutput(CompletionOutput):
    """A sequence with what HF's ``GenerateOutput`` has besides tokens.

    Attributes:
        sequences_score: of a beam, HF's ``sequences_scores``: the sum of its processed
            log-probabilities, divided by its length to the power of ``length_penalty``.
        scores: float32 [num_tokens, vocab_size] after all processors, of which each token was
            chosen, if ``output_scores`` was set; of beams, log-probabilities.
        logits: float32 [num_tokens, vocab_size] of the model, if ``output_logits`` was set.
        receipt: of an engine with ``receipts``, once the answer is complete: ``docs/receipts.md``.
        logits_digests: likewise, of the logits of each token.
    """

    sequences_score: float | None = None
    scores: np.ndarray | None = None
    logits: np.ndarray | None = None
    receipt: dict[str, Any] | None = None
    logits_digests: list[bytes] | None = None

    @classmethod
    def of(cls, output: CompletionOutput, **more: Any) -> HFOutput:
        """Return a copy of an output that has `more`."""
        given = {one.name: getattr(output, one.name) for one in fields(output)}
        return cls(**{**given, **more})


def compute_transition_scores(output: HFOutput, *, normalize_logits: bool = False) -> np.ndarray:
    """Return the score of each token of a sequence (``GenerationMixin.compute_transition_scores``).

    Args:
        output: of a request with ``output_scores=True``.
        normalize_logits: make log-probabilities of the scores first.

    Returns:
        float32 [num_tokens].

    Raises:
        ValueError: the request did not ask for scores.
    """
    scores = getattr(output, "scores", None)
    if scores is None:
        raise ValueError("This answer has no scores: set output_scores=True in its request.")
    values = torch.from_numpy(scores)
    if normalize_logits:
        values = values.log_softmax(dim=-1)
    tokens = torch.tensor(list(output.token_ids))[:, None]
    return values.gather(1, tokens)[:, 0].numpy()


class _BeamDetokenizer(WrappedDetokenizer):
    """Makes the text of several sequences; itself, it has the best one."""

    def __init__(self, request: EngineCoreRequest, tokenizer: Any) -> None:
        self._request = request
        self._tokenizer = tokenizer
        super().__init__(self.new())

    def new(self) -> IncrementalDetokenizer:
        made = IncrementalDetokenizer.from_new_request(self._tokenizer, self._request)
        return _whole_text(made, self._request, self._tokenizer)

    def output(self, index: int, beam: dict[str, Any]) -> HFOutput:
        """Return the sequence that came at this place."""
        hf_request = HFRequest.of(self._request.sampling_params)
        token_ids = list(beam["token_ids"])
        is_cut = len(token_ids) == hf_request.max_length - hf_request.prompt_len
        has_eos = any(token in hf_request.eos_token_ids for token in token_ids[-1:])
        ended = not is_cut or has_eos
        detokenizer = self.new()
        detokenizer.update(token_ids, stop_terminated=has_eos)
        return HFOutput(
            index=index,
            text=detokenizer.get_next_output_text(finished=True, delta=False),
            token_ids=token_ids,
            cumulative_logprob=None,
            logprobs=None,
            finish_reason="stop" if ended else "length",
            sequences_score=beam["score"],
            **_arrays(beam, slice(len(token_ids))),
        )


def detokenizer_for(
    detokenizer: IncrementalDetokenizer, request: EngineCoreRequest, tokenizer: Any
) -> IncrementalDetokenizer:
    """Return what turns a request's tokens into text and ends it: `detokenizer` if vLLM's rules do.

    Args:
        detokenizer: of the request, made by vLLM.
        request: with its parameters.
        tokenizer: of the model; None if the request wants no text.
    """
    if HFRequest.of(request.sampling_params).num_beams > 1:
        return _BeamDetokenizer(request, tokenizer)
    return stop_like_hf(_whole_text(detokenizer, request, tokenizer), request, tokenizer)


def _whole_text(
    detokenizer: IncrementalDetokenizer, request: EngineCoreRequest, tokenizer: Any
) -> IncrementalDetokenizer:
    """Return a detokenizer whose texts end as Transformers' do; itself without hf_compat."""
    params = request.sampling_params
    if tokenizer is None or params is None or EXTRA_ARGS_KEY not in (params.extra_args or {}):
        return detokenizer
    return WholeText(detokenizer, tokenizer, request.prompt_token_ids or [], params)


def _of_own_tokens(name: str) -> Any:
    """Return a property with the rows of the tokens that an output has now."""

    def rows(output: DeltaOutput) -> np.ndarray | None:
        tokens = slice(output._first, output._first + len(output.token_ids))
        return _arrays(output._collected, tokens).get(name)

    return property(rows, lambda output, value: None)


class DeltaOutput(HFOutput):
    """A part of a sequence; vLLM joins parts that nobody has fetched, by their tokens."""

    _collected: dict[str, Any]
    _first: int

    scores = _of_own_tokens("scores")
    logits = _of_own_tokens("logits")

    @classmethod
    def part(cls, output: CompletionOutput, collected: dict[str, Any], first: int) -> DeltaOutput:
        """Return an output with the fields of `output`, whose first token is number `first`."""
        made = cls(**{one.name: getattr(output, one.name) for one in fields(CompletionOutput)})
        made._collected, made._first = collected, first
        return made


def collect(state: RequestState, answer: EngineCoreOutput) -> None:
    """Keep what an output of the engine carries besides tokens.

    Args:
        state: of the request.
        answer: the output.
    """
    if answer.hf_compat is None:
        return
    collected: dict[str, list[Any]] = vars(state).setdefault("hf_compat", {})
    for name, values in answer.hf_compat.items():
        collected.setdefault(name, []).extend(values)
    if isinstance(state.detokenizer, StoppingDetokenizer):
        state.detokenizer.scores = collected.get("scores", [])


def with_tensors(state: RequestState, output: CompletionOutput) -> CompletionOutput:
    """Return `output` with the scores and logits that were collected; itself without any.

    It ends in an error if a criterion failed.

    Args:
        state: of the request.
        output: what vLLM made of its tokens.
    """
    if isinstance(state.detokenizer, StoppingDetokenizer) and state.detokenizer.failure:
        output.finish_reason = "error"
    collected = getattr(state, "hf_compat", {})
    if not any(name in collected for name in _TENSORS):
        return output
    if state.output_kind == RequestOutputKind.DELTA:
        first = vars(state).get("hf_compat_sent", 0)
        vars(state)["hf_compat_sent"] = first + len(output.token_ids)
        return DeltaOutput.part(output, collected, first)
    return HFOutput.of(output, **_arrays(collected, slice(len(output.token_ids))))


def with_beams(state: RequestState, outputs: list[CompletionOutput]) -> list[CompletionOutput]:
    """Return the sequences of a beam search that has ended, best first; else `outputs`.

    Args:
        state: of the request.
        outputs: what vLLM made of its tokens.
    """
    beams = getattr(state, "hf_compat", {}).get("beams")
    if beams is None:
        return outputs
    assert isinstance(state.detokenizer, _BeamDetokenizer)
    return [state.detokenizer.output(i, beam) for i, beam in enumerate(beams)]


def _arrays(collected: dict[str, Any], tokens: slice) -> dict[str, Any]:
    """Return the scores and logits of some tokens, float32 [num_tokens, vocab_size], if any."""
    # The engine may have computed some rows beyond the end of the answer.
    return {
        name: np.stack([np.frombuffer(row, np.float32) for row in collected[name][tokens]])
        for name in _TENSORS
        if collected.get(name, ())[tokens]
    }
