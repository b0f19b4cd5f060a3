"""HF's stopping criteria beyond length and end of sequence, where answers become text.

``GenerationMixin`` asks its criteria after every token, with all tokens of the sequence. Here the
process that accepts requests asks them when the engine hands it a token, and ends the request as
vLLM ends one at a stop string; what the engine computed beyond is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StopStringCriteria,
)

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.texts.stop_strings import StopStrings
from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.v1.engine import EngineCoreRequest

logger = init_logger(__name__)


def criteria_of(
    request: HFRequest, tokenizer: Callable[[], Any], start: float | None = None
) -> list[StoppingCriteria]:
    """Return a fresh copy of HF's objects (``GenerationMixin._get_stopping_criteria``).

    One of the caller's takes the place of the one that `generate()` would make of its class.

    Args:
        request: says what they are.
        tokenizer: returns the model's; called for stop strings alone.
        start: from when the time counts, in seconds since the epoch; None is now.
    """
    own: list[StoppingCriteria] = cloudpickle.loads(request.criteria) if request.criteria else []
    kinds = {type(criterion) for criterion in own}
    found: list[StoppingCriteria] = []
    if request.max_time is not None and MaxTimeCriteria not in kinds:
        found.append(MaxTimeCriteria(request.max_time, initial_timestamp=start))
    if request.stop_strings is not None and StopStringCriteria not in kinds:
        found.append(StopStrings(tokenizer(), request.stop_strings))
    return [*found, *own]


def criteria_of_search(request: HFRequest, model_config: ModelConfig) -> list[StoppingCriteria]:
    """Return the criteria of a beam search, which the worker asks.

    Args:
        request: of the search.
        model_config: names the tokenizer.
    """
    return criteria_of(request, lambda: cached_tokenizer_from_config(model_config))


def check_criteria(request: HFRequest) -> None:
    """Refuse criteria of the caller's that would lift a limit of the configuration.

    `generate()` has one criterion of a class: theirs takes the place of its own.

    Args:
        request: with its lengths.

    Raises:
        VLLMValidationError: says which field to set.
    """
    try:
        own = cloudpickle.loads(request.criteria) if request.criteria else []
    except Exception as error:  # whatever the caller's objects raise
        raise VLLMValidationError(
            f"A stopping criterion cannot be unpickled ({type(error).__name__}: {error}), which "
            "gives each sequence a copy of its own."
        ) from None
    for criterion in own:
        if type(criterion) is MaxLengthCriteria and criterion.max_length > request.max_length:
            raise VLLMValidationError(
                f"A MaxLengthCriteria of {criterion.max_length} tokens takes the place of the "
                f"{request.max_length} of this request in generate(): set max_length instead."
            )
        if type(criterion) is EosTokenCriteria:
            ids = set(torch.as_tensor(criterion.eos_token_id).flatten().tolist())
            if not set(request.eos_token_ids) <= ids:
                raise VLLMValidationError(
                    "An EosTokenCriteria takes the place of eos_token_id="
                    f"{request.eos_token_ids} in generate(): set eos_token_id instead."
                )


def check_stop_strings(stop_strings: str | list[str], tokenizer: Any) -> None:
    """Refuse what Transformers cannot look for.

    Raises:
        VLLMValidationError: with its reason.
    """
    try:
        StopStrings(tokenizer, stop_strings)
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise VLLMValidationError(
            f"Transformers fails on stop_strings={stop_strings!r:.200}: {error}",
            parameter="stop_strings",
        ) from None


def stop_like_hf(
    detokenizer: IncrementalDetokenizer, request: EngineCoreRequest, tokenizer: Any
) -> IncrementalDetokenizer:
    """Return what turns a request's tokens into text and ends it: `detokenizer` if vLLM's rules do.

    Args:
        detokenizer: of the request, made by vLLM.
        request: with its parameters.
        tokenizer: of the model; None only if the request has no criteria.
    """
    hf_request = HFRequest.of(request.sampling_params)
    if not hf_request.has_criteria:
        return detokenizer
    padding = [hf_request.pad_token_id] * hf_request.left_padding
    return StoppingDetokenizer(
        detokenizer,
        criteria_of(hf_request, lambda: tokenizer, request.arrival_time),
        [*padding, *(request.prompt_token_ids or [])],
        hf_request.criteria_see_scores,
    )


class WrappedDetokenizer(IncrementalDetokenizer):
    """Passes everything on to another detokenizer.

    Args:
        inner: makes the text.
    """

    def __init__(self, inner: IncrementalDetokenizer) -> None:
        self._inner = inner

    @property
    def output_token_ids(self) -> list[int]:
        """All tokens of the answer so far."""
        return self._inner.output_token_ids

    def num_output_tokens(self) -> int:
        """How many they are."""
        return self._inner.num_output_tokens()

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Take new tokens, as ``IncrementalDetokenizer.update``."""
        return self._inner.update(new_token_ids, stop_terminated)

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """The text so far, as ``IncrementalDetokenizer.get_next_output_text``."""
        return self._inner.get_next_output_text(finished, delta)


class StoppingDetokenizer(WrappedDetokenizer):
    """A detokenizer that asks HF's criteria after each token.

    Args:
        inner: makes the text.
        criteria: HF's.
        prompt: the tokens before the answer.

        see_scores: whether criteria are given the scores of all steps, as HF gives them with
            ``output_scores`` and ``return_dict_in_generate``.

    Attributes:
        failure: why the answer ended, if a criterion failed.
        scores: for each token that the engine has sent, the bytes of float32 [vocab_size].
    """

    def __init__(
        self,
        inner: IncrementalDetokenizer,
        criteria: list[StoppingCriteria],
        prompt: list[int],
        see_scores: bool,
    ) -> None:
        super().__init__(inner)
        self.failure: str | None = None
        self.scores: list[bytes] = []
        self._see_scores = see_scores
        self._num_prompt = len(prompt)
        self._criteria = criteria
        self._input_ids = torch.tensor([prompt], dtype=torch.int64)

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Take new tokens; return the name of the criterion that ends the answer, if one does.

        As ``IncrementalDetokenizer.update``; tokens after the one that ends it are dropped.
        """
        for i, token_id in enumerate(new_token_ids):
            self._input_ids = torch.cat([self._input_ids, torch.tensor([[token_id]])], dim=1)
            reasons = [why for one in self._criteria if (why := self._ask(one)) is not None]
            if reasons:
                kept = new_token_ids[: i + 1]
                ended = stop_terminated and len(kept) == len(new_token_ids)
                return self._inner.update(kept, ended) or self.failure or reasons[0]
        return self._inner.update(new_token_ids, stop_terminated)

    def _ask(self, criterion: StoppingCriteria) -> str | None:
        """Return why a criterion ends the answer; a failing one does, and not the others' too."""
        try:
            # As HF adds them up, for which a bool serves, too.
            is_done = torch.full((1,), False) | criterion(self._input_ids, self._seen())
            goes_on = torch.ones(1, dtype=torch.int64) & ~is_done
            return None if goes_on.any() else _reason(criterion)
        except Exception as error:  # whatever the caller's objects raise
            logger.exception("hf_compat: a stopping criterion failed")
            self.failure = f"{type(criterion).__name__} failed: {type(error).__name__}: {error}"
            return self.failure

    def _seen(self) -> Any:
        """Return HF's argument ``scores``: float32 [1, vocab_size] of each token so far."""
        if not self._see_scores:
            return None
        num_tokens = self._input_ids.shape[1] - self._num_prompt
        return tuple(
            torch.frombuffer(bytearray(row), dtype=torch.float32)[None]
            for row in self.scores[:num_tokens]
        )


def _reason(criterion: StoppingCriteria) -> str:
    """What a client reads as ``stop_reason``."""
    if isinstance(criterion, StopStrings) and len(criterion.stop_strings) == 1:
        return str(criterion.stop_strings[0]) or "stop_strings"
    names = {StopStrings: "stop_strings", MaxTimeCriteria: "max_time"}
    return names.get(type(criterion), type(criterion).__name__)
