"""HF's own complaints about a request's processors, raised before it reaches the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from transformers import PretrainedConfig

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.logits.batch import RequestState, Rows, Tables
from vllm.hf_compat.logits.pipeline import Pipeline
from vllm.hf_compat.logits.sequence_bias import check_sequences

_MOST_PASSED = 10_000  # digests of 64 characters: about a megabyte
_LONGEST_REASON = 500  # HF quotes all that it was given


class ProcessorCheck:
    """Builds and tries the processors of each new configuration once, as HF does in a call.

    Args:
        model_config: Transformers' configuration of the model.
        vocab_size: width of the logits.
    """

    def __init__(self, model_config: PretrainedConfig, vocab_size: int) -> None:
        self._model_config = model_config
        self._vocab_size = vocab_size
        self._passed: set[str] = set()

    def __call__(self, request: HFRequest) -> None:
        """Check one request.

        Raises:
            VLLMValidationError: HF's reason, or the token id that the model does not have.
        """
        # Callbacks are not tried: they may count their calls, or expect the prompt. Its length
        # changes when processors act, and not what they are.
        request = replace(request, pickled=None, prompt_len=2)
        key = Pipeline.key(request)
        if key in self._passed:
            return
        try:
            self._check_ids(request)
            check_sequences(request.fields)
            self._try(request)
        except ValueError as error:
            raise VLLMValidationError(_shortened(str(error))) from None
        except (TypeError, IndexError, ArithmeticError, RuntimeError) as error:
            fields = _shortened(str(request.fields))
            raise VLLMValidationError(
                f"Transformers fails on {fields} with {type(error).__name__}: {error}."
            ) from None
        if len(self._passed) >= _MOST_PASSED:  # of clients that never repeat themselves
            self._passed.clear()
        if key is not None:
            self._passed.add(key)

    def _check_ids(self, request: HFRequest) -> None:
        for name, token_ids in _token_ids(request):
            for token_id in token_ids:
                if isinstance(token_id, int) and not 0 <= token_id < self._vocab_size:
                    raise VLLMValidationError(
                        f"{name} names token {token_id}, but the model's tokens are 0 to "
                        f"{self._vocab_size - 1}."
                    )

    def _try(self, request: HFRequest) -> None:
        """Process one row after a prompt of one token."""
        device = torch.device("cpu")
        pipeline = Pipeline(request, self._model_config, device)
        tables = Tables(1, self._vocab_size, 1, device)
        state = RequestState(request, pipeline, 0, [0], [], [0], 0, None)
        tables.write(state)
        scores = torch.zeros(1, self._vocab_size)
        pipeline(Rows([state], [False], tables, scores), scores.clone())


def _token_ids(request: HFRequest) -> Iterator[tuple[str, Iterable[int]]]:
    """Yield the token ids that index the logits, where HF fails at some later step."""
    fields = request.fields
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        value: Any = fields.get(name)
        yield name, value if isinstance(value, list | tuple) else [value]
    yield "bad_words_ids", _of_lists(fields.get("bad_words_ids"))
    pairs = (pair for pair in fields.get("sequence_bias") or [] if isinstance(pair, list | tuple))
    yield "sequence_bias", _of_lists([pair[0] for pair in pairs if pair])
    if "exponential_decay_length_penalty" in fields:
        yield "eos_token_id", request.eos_token_ids


def _of_lists(sequences: Any) -> Iterable[int]:
    """Return what is in lists; what is none is for HF to refuse."""
    sequences = sequences if isinstance(sequences, list | tuple) else []
    return chain.from_iterable(one for one in sequences if isinstance(one, list | tuple))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
