"""What happens to the logits of a step: HF's processors, in HF's order, for many requests at once.

Transformers itself builds the list (``GenerationMixin._get_logits_processor``) and its classes do
the work, on the rows of all requests with the same configuration together. HF's rows have one
length; the engine's do not. So each class is called with what it reads of ``input_ids``: nothing,
a length, or the tokens, aligned to the right. An object of the caller's, whatever its class, is
called as it is, with all tokens of the sequence that it is for. The repetition penalties are the
fork's own: they remember what a sequence has seen instead of looking at all of it in every step.
`in_place`, `sequence_bias` and `ngrams` stand in for HF's code, with the same bits, where that
copies all scores to change few, or costs more than its parameters are long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    PretrainedConfig,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)
from transformers.generation import logits_process as hf

from vllm.fork.on_device import on_device
from vllm.fork_kernels.logits.seen_tokens import apply_repetition_penalty
from vllm.hf_compat.call.generate_call import Callbacks, PrefixFunction
from vllm.hf_compat.call.request import LISTS, HFRequest, packed
from vllm.hf_compat.logits.in_place import Step, in_place_step
from vllm.hf_compat.logits.ngrams import forbid_ngrams_of_prompt
from vllm.hf_compat.logits.sequence_bias import SequenceBias, biases_of

if TYPE_CHECKING:
    from vllm.hf_compat.logits.batch import RequestState, Rows

DEVICE_ERRORS = (torch.AcceleratorError, torch.OutOfMemoryError, MemoryError)
"""What is wrong with the machine, and not with a request."""

_FAR = 1 << 40
"""Stands for ``max_length`` in processors that are shared by requests of different lengths."""


class _Builder(GenerationMixin):
    """As much of a model as ``_get_logits_processor`` looks at."""

    def __init__(self, model_config: PretrainedConfig) -> None:
        self.config = model_config


class Pipeline:
    """HF's processors for one configuration, shared by all requests that have it.

    Processors that keep something between steps (a caller's own, SynthID's) are not shared: the
    request's pipeline is for it alone.

    Args:
        request: any of these requests.
        model_config: Transformers' configuration of the model.
        device: where the scores are.

    Attributes:
        do_sample: whether a token is drawn, or the best one taken.
        reads_tokens: whether a step reads the sequence itself, not only what it has seen.
        reads_prompt: whether a step asks which tokens are in the prompt.
        returns_scores: whether the processed scores are part of the answer.
        returns_logits: whether the model's are.
        is_private: whether it is for one request alone.
    """

    def __init__(
        self, request: HFRequest, model_config: PretrainedConfig, device: torch.device
    ) -> None:
        fields = request.fields
        self.returns_scores = bool(fields.get("output_scores"))
        self.returns_logits = bool(fields.get("output_logits"))
        self.is_private = _is_private(request)
        self.do_sample = bool(fields.get("do_sample"))
        self.reads_tokens = False
        self.reads_prompt = False
        self._device = device
        try:
            self._steps = self._build(request, model_config)
        except Exception as error:  # a caller's objects may need what this process does not have
            self._steps = [partial(_fail, error)]

    def _build(self, request: HFRequest, model_config: PretrainedConfig) -> list[Step]:
        """Return the steps, of HF's list and the caller's objects in it."""
        config = _config(request.fields)
        callbacks = Callbacks.unpack(request.pickled)
        device = self._device
        nominal_prompt_len = _nominal_prompt_len(request)
        config.max_length = _FAR
        eos = request.eos_token_ids
        config._eos_token_tensor = on_device(eos, device) if eos else None
        processors = _Builder(model_config)._get_logits_processor(
            config,
            input_ids_seq_length=nominal_prompt_len,
            encoder_input_ids=torch.zeros(1, 1, dtype=torch.int64),  # replaced by each prompt
            device=device,
            prefix_allowed_tokens_fn=_numbered(callbacks.prefix_allowed_tokens_fn, request.row),
            logits_processor=hf.LogitsProcessorList(callbacks.logits_processor),
        )
        own = {id(processor) for processor in callbacks.logits_processor}
        return [
            self._own_step(processor) if id(processor) in own else self._step(processor, request)
            for processor in processors
        ]

    @staticmethod
    def key(request: HFRequest) -> str | None:
        """Return what two requests must share to share a pipeline; None if they cannot.

        It is a digest, and short whatever the parameters are.
        """
        if _is_private(request):
            return None
        fields = packed(request.fields)
        lists = {name: fields.pop(name) for name in LISTS if name in fields}
        shared = (fields, [*lists], request.eos_token_ids, _nominal_prompt_len(request))
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode())
        for value in lists.values():
            digest.update(hashlib.sha256(value).digest())
        return digest.hexdigest()

    def __call__(self, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
        """Apply all steps to scores float32 [num_rows, vocab_size], perhaps in place.

        Raises:
            Exception: whatever a step raises.
        """
        for step in self._steps:
            scores = step(rows, scores)
        return scores

    def process(
        self, rows: Rows, scores: torch.Tensor, first: int = 0
    ) -> tuple[torch.Tensor, dict[int, Exception]]:
        """Apply all steps to rows of which some may fail.

        Args:
            rows: of different requests.
            scores: float32 [num_rows, vocab_size], perhaps changed in place.
            first: the step to begin with.

        Returns:
            The scores, and the error of each row that a step failed on, whose scores mean nothing;
            the others are what they would have been without it.

        Raises:
            Exception: an error of the device, which is no row's.
        """
        for number, step in enumerate(self._steps[first:], first):
            try:
                scores = step(rows, scores)
            except DEVICE_ERRORS:
                raise
            except Exception as error:
                if len(scores) == 1:
                    return scores, {0: error}
                return self._process_apart(rows, scores, number)
        return scores, {}

    def _process_apart(
        self, rows: Rows, scores: torch.Tensor, first: int
    ) -> tuple[torch.Tensor, dict[int, Exception]]:
        """Process each row alone: a step that fails has changed none of them."""
        processed, errors = [], {}
        for i in range(len(scores)):
            row, error = self.process(rows.select([i]), scores[i : i + 1], first)
            processed.append(row)
            if error:
                errors[i] = error[0]
        return torch.cat(processed), errors

    def _own_step(self, processor: hf.LogitsProcessor) -> Step:
        """Return a step that calls an object of the caller's as `generate()` does, whatever it is:
        what it was made with is not known here, nor what it reads.
        """
        self.reads_tokens = True
        return partial(_with_own, processor)

    def _step(self, processor: hf.LogitsProcessor, request: HFRequest) -> Step:
        """Return a step that gives a `processor` that HF made what it reads of ``input_ids``.

        It raises before it changes any scores, or not at all, or does the same again.
        """
        kind = type(processor)
        self.reads_tokens |= kind in _READ_TOKENS
        if (name := _STAND_INS_OF.get(kind)) is not None:
            return self._step_of(name, request)
        nominal_prompt_len = _nominal_prompt_len(request)
        if (step := in_place_step(processor, nominal_prompt_len, self._device)) is not None:
            return step
        if kind is hf.UnbatchedClassifierFreeGuidanceLogitsProcessor:
            return partial(_guide, processor.guidance_scale)
        if kind in _READ_NOTHING:
            return partial(_with_nothing, processor)
        if kind in _READ_LENGTH:
            return partial(_with_lengths, processor, _length)
        if kind in _READ_NEW_LENGTH:
            return partial(_with_lengths, processor, partial(_length_after, nominal_prompt_len))
        if kind is hf.ForcedEOSTokenLogitsProcessor:
            return partial(_with_lengths, processor, _length_before_far)
        if kind is hf.RepetitionPenaltyLogitsProcessor:
            return partial(_penalize_seen, processor.penalty)
        if kind is hf.EncoderRepetitionPenaltyLogitsProcessor:
            self.reads_prompt = True
            return partial(_penalize_prompt, processor.penalty)
        self.reads_tokens = True
        if kind is hf.WatermarkLogitsProcessor:
            return partial(_with_context, processor, processor.context_width)
        if self.is_private or kind in _READ_TOKENS:
            return partial(_with_tokens, processor)
        raise NotImplementedError(f"hf_compat does not know how to call {kind.__name__}")

    def _step_of(self, name: str, request: HFRequest) -> Step:
        """Return the step of a field for which HF has made a processor of a stand-in."""
        if name == "encoder_no_repeat_ngram_size":
            return partial(forbid_ngrams_of_prompt, request.fields[name])
        biases = biases_of(request.fields, name, request.eos_token_ids)
        return SequenceBias(biases, self._device)


_READ_NOTHING = (
    hf.InfNanRemoveLogitsProcessor,
    hf.TopHLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.LogitNormalization,
)
_READ_LENGTH = (hf.ForcedBOSTokenLogitsProcessor,)
_READ_NEW_LENGTH = (hf.ExponentialDecayLengthPenalty,)  # it counts from the end of the prompt
_READ_TOKENS = (
    hf.SequenceBiasLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.EncoderNoRepeatNGramLogitsProcessor,
)
_STAND_INS_OF = {
    hf.SequenceBiasLogitsProcessor: "sequence_bias",
    hf.NoBadWordsLogitsProcessor: "bad_words_ids",
    hf.EncoderNoRepeatNGramLogitsProcessor: "encoder_no_repeat_ngram_size",
}
_STAND_INS: dict[str, Any] = {
    "sequence_bias": [[[0], 0.0]],
    "bad_words_ids": [[0, 0]],  # two tokens are never EOS, which HF takes out
}
"""What HF's constructors are told in place of long lists: the request has been checked with these
(`sequence_bias.check_sequences`), and the step is ours."""


def _config(fields: Mapping[str, Any]) -> GenerationConfig:
    """Return the configuration that `step_fields` wrote down, with what HF makes its list of."""
    size = fields.get("encoder_no_repeat_ngram_size")
    stand_ins = dict(_STAND_INS)
    if isinstance(size, int):  # HF refuses other numbers, and makes a list for each of these
        stand_ins["encoder_no_repeat_ngram_size"] = min(size, 1)
    said = {name: stand_ins[name] if name in stand_ins else fields[name] for name in fields}
    config = GenerationConfig(**{"num_beams": 1, **said, "watermarking_config": None})
    watermark = fields.get("watermarking_config")
    if watermark is not None:
        synth_id = "ngram_len" in watermark
        kind = SynthIDTextWatermarkingConfig if synth_id else WatermarkingConfig
        config.watermarking_config = kind.from_dict(watermark)
    return config


def _is_private(request: HFRequest) -> bool:
    watermark = request.fields.get("watermarking_config") or {}
    return request.pickled is not None or "ngram_len" in watermark


def _nominal_prompt_len(request: HFRequest) -> int:
    """Return the prompt length that stands for the request's in a shared pipeline.

    One length serves for all processors that count from the prompt's end; only prompts of at most
    one token are special to HF.
    """
    return min(request.prompt_len, 2)


# --- calling HF's classes ------------------------------------------------------------------------
def _fail(error: Exception, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    raise error


def _with_nothing(processor: hf.LogitsProcessor, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    return processor(rows.ids_of_length(0), scores)


def _guide(scale: float, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """``UnbatchedClassifierFreeGuidanceLogitsProcessor``, with the engine's second rows.

    HF takes the logits of the negative prompt as the model returns them, in its own dtype.
    """
    assert rows.unguided is not None
    scores = scores.log_softmax(dim=-1)
    unguided = rows.unguided.to(rows.tables.model_dtype).log_softmax(dim=-1)
    return scale * (scores - unguided) + unguided


def _with_lengths(
    processor: hf.LogitsProcessor,
    length_of: Callable[[RequestState], int],
    rows: Rows,
    scores: torch.Tensor,
) -> torch.Tensor:
    """Call `processor` for the rows of each length."""
    by_length: dict[int, list[int]] = {}
    for i, state in enumerate(rows.states):
        by_length.setdefault(length_of(state), []).append(i)
    if len(by_length) == 1:
        return processor(rows.ids_of_length(next(iter(by_length))), scores)
    processed = []
    for length, indices in by_length.items():
        places = rows.tables.indices(indices)
        ids = rows.select(indices).ids_of_length(length)
        processed.append((places, processor(ids, scores[places])))
    for places, part in processed:
        scores[places] = part
    return scores


def _length(state: RequestState) -> int:
    """HF's ``input_ids.shape[1]``."""
    return state.num_tokens


def _length_after(prompt_len: int, state: RequestState) -> int:
    """HF's ``input_ids.shape[1]``, had the request a prompt of that length."""
    return prompt_len + state.num_outputs


def _length_before_far(state: RequestState) -> int:
    """HF's ``input_ids.shape[1]``, had the request `_FAR` as its ``max_length``."""
    return _FAR - (state.request.max_length - state.num_tokens)


def _with_tokens(processor: hf.LogitsProcessor, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """Call `processor` with all sequences, aligned to the right."""
    return processor(rows.token_ids(), scores)


def _with_own(processor: hf.LogitsProcessor, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """Call an object of the caller's, whose scores all that follows relies on.

    Raises:
        TypeError: it returned something else than scores.
    """
    returned = processor(rows.token_ids(), scores)
    if not isinstance(returned, torch.Tensor):
        raise TypeError(f"{type(processor).__name__} returned {returned!r:.100}, and no scores")
    if (returned.shape, returned.dtype, returned.device) != (
        scores.shape,
        scores.dtype,
        scores.device,
    ):
        raise TypeError(
            f"{type(processor).__name__} returned {returned.dtype} {list(returned.shape)} on "
            f"{returned.device}, and not scores {scores.dtype} {list(scores.shape)} on "
            f"{scores.device}"
        )
    return returned


def _numbered(function: PrefixFunction | None, row: int) -> PrefixFunction | None:
    """Return a caller's function as it is called in an HF batch in which a request has a `row`."""
    return None if function is None else lambda batch_id, ids: function(row + batch_id, ids)


def _with_context(
    processor: hf.LogitsProcessor, width: int, rows: Rows, scores: torch.Tensor
) -> torch.Tensor:
    """Call `processor` with the last `width` tokens of the rows that have them."""
    indices = [i for i, state in enumerate(rows.states) if state.num_tokens >= width]
    if indices:
        part, places = rows.select(indices), rows.tables.indices(indices)
        scores[places] = processor(part.token_ids()[:, -width:], scores[places])
    return scores


# --- the penalties -------------------------------------------------------------------------------
def _penalize_seen(penalty: float, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    return _penalize(penalty, rows.tables.seen, rows, scores)


def _penalize_prompt(penalty: float, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    return _penalize(penalty, rows.tables.in_prompt, rows, scores)


def _penalize(penalty: float, mask: torch.Tensor, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    penalties = torch.full((len(scores),), penalty, dtype=torch.float64, device=scores.device)
    apply_repetition_penalty(scores, mask, rows.slots, penalties)
    return scores
