"""HF's stopping criteria beyond length and end of sequence, where answers become text.

``GenerationMixin`` asks its criteria after every token, with all tokens of the sequence. Here the
process that accepts requests asks them when the engine hands it a token, and ends the request as
vLLM ends one at a stop string; what the engine computed beyond is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig
from transformers.generation import (
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call import Callbacks
from vllm.hf_compat.request import HFRequest
from vllm.hf_compat.stop_strings import StopStrings
from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.v1.engine import EngineCoreRequest

logger = init_logger(__name__)

_ATTRIBUTE = "_hf_stopping"  # of SamplingParams; msgspec does not send it to the engine


class Stopping:
    """The criteria of one request.

    Args:
        config: a merged configuration.
        custom: the caller's own criteria.
        padding: the tokens that HF has before the prompt.
    """

    def __init__(
        self, config: GenerationConfig, custom: list[StoppingCriteria], padding: list[int]
    ) -> None:
        self._stop_strings = config.stop_strings
        self._max_time = config.max_time
        self._custom = custom
        self.padding = padding

    def attach(self, params: Any) -> None:
        """Keep the criteria with a request's parameters, in this process."""
        if self._stop_strings is not None or self._max_time is not None or self._custom:
            setattr(params, _ATTRIBUTE, self)

    def criteria(self, tokenizer: Any, arrival_time: float) -> StoppingCriteriaList:
        """Return HF's objects (``GenerationMixin._get_stopping_criteria``).

        Args:
            tokenizer: of the model.
            arrival_time: when the request came, in seconds since the epoch.
        """
        found = _criteria(self._max_time, arrival_time, self._stop_strings, lambda: tokenizer)
        return StoppingCriteriaList([*found, *self._custom])


def criteria_of_search(request: HFRequest, model_config: ModelConfig) -> list[StoppingCriteria]:
    """Return the criteria of a beam search, which the worker asks.

    Args:
        request: of the search.
        model_config: names the tokenizer.
    """
    found = _criteria(
        request.fields.get("max_time"),
        None,
        request.fields.get("stop_strings"),
        lambda: cached_tokenizer_from_config(model_config),
    )
    return [*found, *Callbacks.unpack(request.pickled).stopping_criteria]


def check_stop_strings(stop_strings: str | list[str], tokenizer: Any) -> None:
    """Refuse what Transformers cannot look for.

    Raises:
        VLLMValidationError: with its reason.
    """
    try:
        StopStrings(tokenizer, stop_strings)
    except (ValueError, TypeError, AssertionError) as error:
        raise VLLMValidationError(
            f"Transformers fails on stop_strings={stop_strings!r:.200}: {error}",
            parameter="stop_strings",
        ) from None


def _criteria(
    max_time: float | None,
    start: float | None,
    stop_strings: str | list[str] | None,
    tokenizer: Callable[[], Any],
) -> list[StoppingCriteria]:
    """Return HF's criteria of a configuration; the time counts from now if it has no start."""
    found: list[StoppingCriteria] = []
    if max_time is not None:
        found.append(MaxTimeCriteria(max_time, initial_timestamp=start))
    if stop_strings is not None:
        found.append(StopStrings(tokenizer(), stop_strings))
    return found


def stop_like_hf(
    detokenizer: IncrementalDetokenizer, request: EngineCoreRequest, tokenizer: Any
) -> IncrementalDetokenizer:
    """Return what turns a request's tokens into text and ends it: `detokenizer` if vLLM's rules do.

    Args:
        detokenizer: of the request, made by vLLM.
        request: with its parameters.
        tokenizer: of the model; None only if the request has no criteria.
    """
    stopping: Stopping | None = getattr(request.sampling_params, _ATTRIBUTE, None)
    if stopping is None:
        return detokenizer
    return StoppingDetokenizer(
        detokenizer,
        stopping.criteria(tokenizer, request.arrival_time),
        [*stopping.padding, *(request.prompt_token_ids or [])],
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
    """

    def __init__(
        self, inner: IncrementalDetokenizer, criteria: StoppingCriteriaList, prompt: list[int]
    ) -> None:
        super().__init__(inner)
        self._criteria = criteria
        self._input_ids = torch.tensor([prompt], dtype=torch.int64)

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Take new tokens; return the name of the criterion that ends the answer, if one does.

        As ``IncrementalDetokenizer.update``; tokens after the one that ends it are dropped.
        """
        for i, token_id in enumerate(new_token_ids):
            self._input_ids = torch.cat([self._input_ids, torch.tensor([[token_id]])], dim=1)
            reason = next(filter(None, map(self._ask, self._criteria)), None)
            if reason is not None:
                kept = new_token_ids[: i + 1]
                ended = stop_terminated and len(kept) == len(new_token_ids)
                return self._inner.update(kept, ended) or reason
        return self._inner.update(new_token_ids, stop_terminated)

    def _ask(self, criterion: StoppingCriteria) -> str | None:
        """Return why a criterion ends the answer; a failing one does, and not the others' too."""
        try:
            return _reason(criterion) if criterion(self._input_ids, None).all() else None
        except Exception as error:  # whatever the caller's objects raise
            logger.exception("hf_compat: a stopping criterion failed")
            return f"{type(criterion).__name__} failed: {type(error).__name__}: {error}"


def _reason(criterion: StoppingCriteria) -> str:
    """What a client reads as ``stop_reason``."""
    if isinstance(criterion, StopStrings) and len(criterion.stop_strings) == 1:
        return str(criterion.stop_strings[0])
    names = {StopStrings: "stop_strings", MaxTimeCriteria: "max_time"}
    return names.get(type(criterion), type(criterion).__name__)
