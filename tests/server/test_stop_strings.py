"""Stop strings are completed where Transformers' class says so, at a cost that nobody notices."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.generation import StopStringCriteria

from tests.engines import MODEL
from tests.sizes import size
from vllm.hf_compat.texts.stop_strings import StopStrings, texts_of

# HF's class prepares each case for as long as the vocabulary is large.
CASES = {"of_bytes": size(12, 200), "with_fallback": size(200, 4000), "of_words": size(200, 4000)}
ALPHABET = "aab \n.é日😀"


def of_bytes() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


def random_pieces(rng: random.Random, alphabet: str) -> list[str]:
    pieces = {"".join(rng.choices(alphabet, k=rng.randrange(1, 5))) for _ in range(60)}
    return sorted(pieces | set("abcdef"))


def with_fallback() -> Any:
    """Pieces of text, as of SentencePiece, and a token for each byte."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    pieces += random_pieces(random.Random(1), "ab.\u2581é日")
    tokenizer = Tokenizer(models.BPE(vocab_of(pieces), [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return fast(tokenizer)


def of_words() -> Any:
    """Words and ends of words, as of BERT; some characters begin no token."""
    rng = random.Random(2)
    pieces = ["[UNK]", "xéa", "##日b", "."]
    pieces += [rng.choice(["", "##"]) + piece for piece in random_pieces(rng, "ab.")]
    pieces += ["abcdef", *(f"##{letter}" for letter in "abcdef")]
    tokenizer = Tokenizer(models.WordPiece(vocab_of(pieces), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return fast(tokenizer)


def vocab_of(pieces: list[str]) -> dict[str, int]:
    """Every third id is nobody's."""
    return {piece: i + i // 2 for i, piece in enumerate(dict.fromkeys(["</s>", *pieces]))}


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    made.add_special_tokens({"eos_token": "</s>"})
    return made


@pytest.mark.parametrize("make", [of_bytes, with_fallback, of_words], ids=lambda f: f.__name__)
def test_like_transformers(make: Callable[[], Any]) -> None:
    """Random strings and tokens, with ids that are nobody's; after each token of a sequence."""
    tokenizer = make()
    texts = texts_of(tokenizer)
    ids = list(tokenizer.get_vocab().values())
    # Tokens of these characters alone meet the stop strings more often.
    short = [i for i in ids if set(as_text(texts[i])) <= set(ALPHABET)]
    rng = random.Random(0)
    completed = 0
    for _ in range(CASES[make.__name__]):
        strings = [random_string(rng, texts, short) for _ in range(rng.randrange(1, 4))]
        theirs, ours = (
            outcome(StopStringCriteria, tokenizer, strings),
            outcome(StopStrings, tokenizer, strings),
        )
        assert (theirs is None) == (ours is None), strings
        if theirs is None or ours is None:
            continue
        rows = [
            [rng.choice(short if rng.random() < 0.9 else [*ids, max(ids) + 2]) for _ in range(12)]
            for _ in range(40)
        ]
        for length in range(1, 13):
            tokens = torch.tensor([row[:length] for row in rows])
            expected = theirs(tokens, None)
            assert torch.equal(ours(tokens, None), expected), (strings, tokens)
            completed += int(expected.sum())
    assert completed > CASES[make.__name__]  # of 480 rows each


def as_text(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def random_string(rng: random.Random, texts: Any, short: list[int]) -> str:
    """Return characters, or the texts of tokens from somewhere within the first to the last."""
    if rng.random() < 0.5:
        return "".join(rng.choices(ALPHABET, k=rng.randrange(0 if rng.random() < 0.1 else 1, 5)))
    text = "".join(as_text(texts[i]) for i in rng.choices(short, k=rng.randrange(1, 4)))
    start = rng.randrange(max(1, len(text)))
    return text[start : rng.randrange(start, len(text)) + 1] if text else "a"


def outcome(kind: Any, tokenizer: Any, strings: list[str]) -> Any:
    """Return the criterion; None if there is none for these strings."""
    try:
        return kind(tokenizer, strings)
    except ValueError:
        return None


@pytest.mark.alone
def test_no_string_is_expensive() -> None:
    """HF's class takes minutes for one of these."""
    tokenizer = of_bytes()
    texts_of(tokenizer)
    tokens = torch.tensor([tokenizer("a" * 3000)["input_ids"]])
    begin = time.monotonic()
    criterion = StopStrings(tokenizer, ["a" * 1000 + "b" * i for i in range(64)])
    for _ in range(20):
        criterion(tokens, None)
    assert time.monotonic() - begin < 1
