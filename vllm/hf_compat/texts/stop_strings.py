"""HF's stop strings without its preprocessing of the vocabulary, with the same results.

``StopStringCriteria`` compares every token of the vocabulary with every place of every stop string,
so that a step is a few operations on tensors; that takes five seconds for a hundred characters and
49,000 tokens, in which nothing else is done. What it finds can be said without: the texts of the
last tokens, one after the other, contain a stop string that ends within the last of them. Here they
are put together and searched, which costs what they are long.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.generation import StoppingCriteria, StopStringCriteria

Text = str | bytes
"""Of a token: bytes if the tokenizer's tokens are parts of UTF-8, which may break characters."""

_PREFIX = "abcdef"  # ``clean_tokenizer_vocab``'s: a text that the token's is added to


class TokenTexts:
    """What each token adds to a text (``StopStringCriteria.clean_tokenizer_vocab``), when asked.

    Args:
        tokenizer: of the model.

    Attributes:
        mode: how tokens stand for bytes, in HF's terms; None if they are text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.mode: str | None = StopStringCriteria._get_stop_string_matching_mode(tokenizer)
        self._tokenizer = tokenizer
        self._ids: dict[str, int] = tokenizer.get_vocab()
        self._tokens = {token_id: token for token, token_id in self._ids.items()}
        self._texts: dict[int, Text] = {}
        byte_level = self.mode == "byte_level"
        self._bytes = StopStringCriteria._byte_level_decoder() if byte_level else None
        ids = tokenizer(_PREFIX, add_special_tokens=False)["input_ids"]
        self._before = [tokenizer._convert_id_to_token(token_id) for token_id in ids]

    def encoded(self, text: str) -> Text:
        """Return a stop string as it is looked for.

        Raises:
            UnicodeEncodeError: it is no valid text, and tokens are bytes.
        """
        return text if self.mode is None else text.encode()

    def __getitem__(self, token_id: int) -> Text | None:
        """Return the text of a token; None if the tokenizer has no such token."""
        text = self._texts.get(token_id)
        if text is None and token_id in self._tokens:
            text = self._texts[token_id] = self._text(self._tokens[token_id])
        return text

    def _text(self, token: str) -> Text:
        text = StopStringCriteria._token_to_bytes(token, self.mode, self._bytes)
        if text is None:
            whole = self._tokenizer.convert_tokens_to_string([*self._before, token])
            text = self.encoded(whole[whole.index(_PREFIX) + len(_PREFIX) :])
        return text

    def can_complete(self, stop_string: Text) -> bool:
        """Return whether there is a token with which the stop string could end."""
        if not stop_string:
            return True
        last = stop_string[-1:]
        likely = (self._ids.get(token) for token in self._likely_tokens(last))
        if any(self[i][:1] == last for i in likely if i is not None):  # type: ignore[index]
            return True
        return any(_overlap(text, stop_string) for text in self._all)

    def _likely_tokens(self, last: Text) -> list[str]:
        """Return tokens that may begin with this character, or byte."""
        if isinstance(last, str):
            return [last, f"##{last}"]
        if self._bytes is not None:
            return [character for character, byte in self._bytes.items() if byte == last[0]]
        return [f"<0x{last[0]:02X}>"]

    @functools.cached_property
    def _all(self) -> list[Text]:
        """The texts of all tokens; needed only for a vocabulary that lacks some characters."""
        return [text for token_id in self._tokens if (text := self[token_id]) is not None]


_TEXTS: WeakKeyDictionary[Any, TokenTexts] = WeakKeyDictionary()


def texts_of(tokenizer: Any) -> TokenTexts:
    """Return the texts of a tokenizer's tokens, which are kept as long as it is."""
    texts = _TEXTS.get(tokenizer)
    if texts is None:
        texts = _TEXTS[tokenizer] = TokenTexts(tokenizer)
    return texts


def _overlap(text: Any, stop_string: Any) -> bool:
    """Return whether a beginning of a token's text ends the stop string, or contains it at its
    end."""
    return any(
        stop_string.endswith(text[:length]) or text[:length].endswith(stop_string)
        for length in range(1, len(text) + 1)
    )


class StopStrings(StoppingCriteria):
    """``StopStringCriteria``: ends a sequence whose last token completes a stop string.

    Args:
        tokenizer: of the model.
        stop_strings: one, or several.

    Raises:
        ValueError: no token can complete any of them, or one is no valid text.
    """

    def __init__(self, tokenizer: Any, stop_strings: str | Iterable[str]) -> None:
        strings = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
        self.stop_strings = tuple(strings)
        self._texts = texts_of(tokenizer)
        self._encoded = [self._texts.encoded(text) for text in strings]
        if not any(self._texts.can_complete(text) for text in self._encoded):
            raise ValueError(
                "Stop string preprocessing finds no token of the vocabulary that could complete "
                "any of the stop strings."
            )
        self._longest = max(map(len, self._encoded))

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return bool [num_sequences]: whether each has come to its end.

        Args:
            input_ids: [num_sequences, num_tokens].
            scores: not looked at.
        """
        # HF looks at one token for each character, some of which may have no text.
        window = input_ids[:, -self._longest :] if self._longest else input_ids[:, :0]
        ended = [self._is_completed(row) for row in window.tolist()]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)

    def _is_completed(self, token_ids: list[int]) -> bool:
        if b"" in self._encoded or "" in self._encoded:
            return True
        last = self._texts[token_ids[-1]]
        if not last:
            return False
        texts: list[Any] = []
        missing = self._longest - 1
        for token_id in reversed(token_ids[:-1]):
            text = self._texts[token_id]
            if missing <= 0 or text is None:
                break
            texts.append(text)
            missing -= len(text)
        before = last[:0].join(reversed(texts))
        whole: Any = before + last  # type: ignore[operator]
        return any(
            whole.find(text, max(0, len(before) - len(text) + 1)) >= 0 for text in self._encoded
        )
