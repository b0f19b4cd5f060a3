"""The end of a text: bytes that are no character yet, as Transformers' ``decode`` writes them."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from vllm.hf_compat.texts.stopping import WrappedDetokenizer
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

_REPLACEMENT = "\ufffd"
_NUM_BEFORE = 8  # tokens of the prompt, after which an answer's first one has its own text
_NUM_LAST = 64  # tokens that are looked at; a character has four bytes


class WholeText(WrappedDetokenizer):
    """Ends a text with what vLLM holds back, since further bytes may complete it.

    Args:
        inner: makes the text.
        tokenizer: of the model.
        prompt: the tokens before the answer.
        params: of the request.
    """

    def __init__(
        self,
        inner: IncrementalDetokenizer,
        tokenizer: Any,
        prompt: list[int],
        params: SamplingParams,
    ) -> None:
        super().__init__(inner)
        self._tokenizer = tokenizer
        self._before = prompt[-_NUM_BEFORE:]
        self._params = params
        self._is_cut = False  # at a stop string
        self._num_left_out = 0  # tokens that end the answer, and are no part of its text

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Take new tokens, as ``IncrementalDetokenizer.update``."""
        stop = super().update(new_token_ids, stop_terminated)
        self._is_cut |= stop is not None
        self._num_left_out = int(
            stop_terminated and not self._params.include_stop_str_in_output and bool(new_token_ids)
        )
        return stop

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """The text so far, as ``IncrementalDetokenizer.get_next_output_text``."""
        text = super().get_next_output_text(finished, delta)
        return text + self._held_back() if finished and not self._is_cut else text

    def _held_back(self) -> str:
        """Return what the last tokens say that are no whole characters; mostly nothing."""
        count = len(self.output_token_ids) - self._num_left_out
        tokens = [*self._before, *self.output_token_ids[:count]]
        tokens = tokens[-_NUM_LAST:]
        if not self._decode(tokens[-_NUM_BEFORE:]).endswith(_REPLACEMENT):
            return ""
        whole = self._decode(tokens)
        first = len(tokens) - count  # of the answer; below 0 if only its end is looked at
        for end in range(len(tokens) - 1, (first if first >= 0 else 1) - 1, -1):
            before = self._decode(tokens[:end])
            if not before.endswith(_REPLACEMENT) and whole.startswith(before):
                return whole[len(before) :]
        return self._behind_text(self.output_token_ids[:count])

    def _behind_text(self, answer: list[int]) -> str:
        """Return what the whole answer says behind the text that it has; for a very long end."""
        start = self._decode(self._before)
        whole = self._decode([*self._before, *answer]).removeprefix(start)
        text = super().get_next_output_text(True, False)
        return whole[len(text) :] if whole.startswith(text) else ""

    def _decode(self, tokens: list[int]) -> str:
        # Tokenizers of other libraries, such as Mistral's, clean nothing up.
        is_from_hf = isinstance(self._tokenizer, PreTrainedTokenizerBase)
        more = {"clean_up_tokenization_spaces": False} if is_from_hf else {}
        special = self._params.skip_special_tokens
        text = self._tokenizer.decode(tokens, skip_special_tokens=special, **more)
        assert isinstance(text, str)
        return text
