"""HF's own complaints about a request's processors, raised before it reaches the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from transformers import PretrainedConfig

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.batch import RequestState, Rows, Tables
from vllm.hf_compat.pipeline import Pipeline
from vllm.hf_compat.request import HFRequest


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
        # Callbacks are not tried: they may count their calls, or expect the prompt.
        request = replace(request, pickled=None)
        key = Pipeline.key(request)
        if key in self._passed:
            return
        for name, token_id in _token_ids(request):
            if not 0 <= token_id < self._vocab_size:
                raise VLLMValidationError(
                    f"{name} names token {token_id}, but the model's tokens are 0 to "
                    f"{self._vocab_size - 1}."
                )
        try:
            self._try(request)
        except ValueError as error:
            raise VLLMValidationError(str(error)) from None
        except (TypeError, IndexError, ArithmeticError, RuntimeError) as error:
            raise VLLMValidationError(
                f"Transformers fails on {request.fields} with {type(error).__name__}: {error}."
            ) from None
        if len(self._passed) > 10_000:  # of clients that never repeat themselves
            self._passed.clear()
        if key is not None:
            self._passed.add(key)

    def _try(self, request: HFRequest) -> None:
        """Process one row after a prompt of one token."""
        device = torch.device("cpu")
        pipeline = Pipeline(request, self._model_config, device)
        tables = Tables(1, self._vocab_size, 1, device)
        state = RequestState(request, pipeline, 0, [0], [], [0], 0, None)
        tables.write(state)
        scores = torch.zeros(1, self._vocab_size)
        pipeline(Rows([state], [False], tables, scores), scores.clone())


def _token_ids(request: HFRequest) -> Iterator[tuple[str, int]]:
    """Yield the token ids that index the logits, where HF fails at some later step."""
    fields = request.fields
    for name in ("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"):
        for token_id in _flat(fields.get(name)):
            yield name, token_id
    bias = fields.get("sequence_bias") or []
    for sequence in bias if isinstance(bias, dict) else [pair[0] for pair in bias if pair]:
        for token_id in _flat(sequence):
            yield "sequence_bias", token_id
    if "exponential_decay_length_penalty" in fields:
        for token_id in request.eos_token_ids:
            yield "eos_token_id", token_id


def _flat(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
