"""Sequences and n-grams: HF's bits for whatever they are, at a cost that is as long as they are."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from tests.hf_compat.test_processors import (
    LLAMA,
    VOCAB_SIZE,
    assert_same_bits,
    make_batch,
    process,
    worker_request,
)
from tests.hf_compat.test_processors import Sequence as Request
from tests.sizes import size
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.logits.processor_check import ProcessorCheck
from vllm.sampling_params import SamplingParams

NUM_EXAMPLES = size(150, 5000)

tokens = st.integers(0, 3)  # few, so that sequences meet
prompts = st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=4)
words = st.lists(tokens, min_size=1, max_size=8)
biases = st.one_of(
    st.floats(-50, 50, width=32),
    st.floats(-50, 50),
    st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 1e300, float("inf"), float("-inf")]),
)
scores = st.sampled_from([0.0, -0.0, 1e-7, 0.1, -3.3, 1e30, float("-inf")])


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """A real model, for the method with which HF builds its list."""
    return LlamaForCausalLM(LLAMA)


def assert_like_hf(
    model: LlamaForCausalLM, prompts: Sequence[list[int]], fields: dict[str, Any], score: float
) -> None:
    """Three steps of requests with these prompts have HF's bits."""
    requests = [Request(model, str(i), prompt, fields) for i, prompt in enumerate(prompts)]
    batch, discarded = make_batch(), np.zeros(len(requests), dtype=bool)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        batch.update([one.request for one in requests], {one.request.req_id for one in requests})
        logits = torch.randn(len(requests), VOCAB_SIZE, generator=generator)
        logits[:, ::2] = score
        expected = torch.stack(
            [one.expected(row) for one, row in zip(requests, logits, strict=True)]
        )
        assert_same_bits(process(batch, logits, discarded), expected)
        drawn = torch.randint(0, 4, (len(requests),), generator=generator)
        batch.append(drawn, discarded)
        for one, token in zip(requests, drawn.tolist(), strict=True):
            one.request.output_token_ids.append(token)


@settings(max_examples=NUM_EXAMPLES)
@given(
    prompts=prompts,
    pairs=st.lists(st.tuples(words, biases).map(list), min_size=1, max_size=40),
    score=scores,
)
def test_random_sequence_biases(
    model: LlamaForCausalLM, prompts: list[list[int]], pairs: list[Any], score: float
) -> None:
    """Of four tokens, so that many end in the same one, and some are longer than what there is."""
    assert_like_hf(model, prompts, {"sequence_bias": pairs}, score)


@settings(max_examples=NUM_EXAMPLES)
@given(prompts=prompts, bad=st.lists(words, min_size=1, max_size=40), score=scores)
def test_random_bad_words(
    model: LlamaForCausalLM, prompts: list[list[int]], bad: list[list[int]], score: float
) -> None:
    fields = {"bad_words_ids": [*bad, [0, 1]], "eos_token_id": [2, 3]}
    assert_like_hf(model, prompts, fields, score)


def test_all_bad_words_are_eos(model: LlamaForCausalLM) -> None:
    """None is left, and HF still adds zero to all scores, which changes -0.0."""
    fields = {"bad_words_ids": [[2], [3]], "eos_token_id": [2, 3]}
    assert_like_hf(model, [[1], [1, 2]], fields, -0.0)


def test_all_lengths_that_end_in_one_token(model: LlamaForCausalLM) -> None:
    """Every bias applies at once: float32 sums that another order would round elsewhere."""
    rng = random.Random(0)
    pairs = [[[1] * length + [2], rng.uniform(-1, 1)] for length in range(60)]
    rng.shuffle(pairs)
    assert_like_hf(model, [[1] * 80, [1] * 30, [0, 1]], {"sequence_bias": pairs}, 0.1)


@settings(max_examples=NUM_EXAMPLES)
@given(
    prompts=prompts, ngram=st.one_of(st.integers(1, 14), st.sampled_from([500, 10**4])), both=...
)
def test_random_ngrams(
    model: LlamaForCausalLM, prompts: list[list[int]], ngram: int, both: bool
) -> None:
    fields = {"encoder_no_repeat_ngram_size": ngram} | (
        {"no_repeat_ngram_size": ngram} if both else {}
    )
    assert_like_hf(model, prompts, fields, 0.1)


# --- what it costs -------------------------------------------------------------------------------
class Work(TorchDispatchMode):
    """Counts the operations of PyTorch and the elements that they return."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        self.elements += result.numel() if isinstance(result, torch.Tensor) else 0
        return result


def work_of(fields: dict[str, Any]) -> Work:
    """Return the work of a request's check and of one step of six rows that follow 200 tokens."""
    request = HFRequest(fields, [2], 200, 240)
    with Work() as work:
        ProcessorCheck(LLAMA, VOCAB_SIZE)(request)
        batch = make_batch()
        requests = [bare_request(str(i), request) for i in range(6)]
        batch.update(requests, {one.req_id for one in requests})
        process(batch, torch.zeros(6, VOCAB_SIZE), np.zeros(6, dtype=bool))
    return work


def bare_request(req_id: str, request: HFRequest) -> Any:
    """Return a worker's request of 200 tokens, without HF's own processors."""
    params = SamplingParams(temperature=0)
    request.attach(params)
    return worker_request(req_id, [1] * 200, params)


def pairs_of_tokens(number: int) -> list[list[int]]:
    return [[1 + i // 300, i % 300] for i in range(number)]


LONG: dict[str, Callable[[], dict[str, Any]]] = {
    "pairs": lambda: {"bad_words_ids": pairs_of_tokens(20_000)},
    "one long word among pairs": lambda: {
        "bad_words_ids": [[7] * 3000, *pairs_of_tokens(3000)],
    },
    "one end": lambda: {
        "sequence_bias": [[[*pair, 5], 1.0] for pair in pairs_of_tokens(20_000)],
    },
    "all lengths": lambda: {"sequence_bias": [[[1] * i + [5], 0.1] for i in range(1, 60)]},
    "one token again and again": lambda: {"suppress_tokens": [5] * 100_000},
    "at the beginning": lambda: {"begin_suppress_tokens": [5] * 100_000},
}


@pytest.mark.parametrize("name", LONG)
def test_work_is_linear(name: str) -> None:
    """Whatever is long: many sequences, one of them, or those that end in the same token."""
    fields = LONG[name]()
    length = sum(map(_length, next(iter(fields.values()))))
    work = work_of(fields)
    assert work.operations < 1000
    assert work.elements < 200 * length + 100_000


def _length(entry: Any) -> int:
    """Return how many tokens an entry of a field has."""
    if isinstance(entry, int):
        return 1
    return len(entry[0]) if isinstance(entry[0], list) else len(entry)


@pytest.mark.parametrize("name", ["encoder_no_repeat_ngram_size", "no_repeat_ngram_size"])
def test_ngrams_longer_than_the_prompt_cost_nothing(name: str) -> None:
    """HF's class makes a list for each of these million tokens."""
    work_of({name: 5})  # what is imported and kept with the first one
    tracemalloc.start()
    work = work_of({name: 1_000_000})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert work.elements < 100_000
    assert work_of({name: 10**9}).elements < 100_000


def test_ngrams_cost_what_is_looked_for() -> None:
    """A hundred tokens before each of a hundred places, at most; mostly far fewer."""
    assert work_of({"encoder_no_repeat_ngram_size": 100}).elements < 300_000


def test_many_words_and_many_ends() -> None:
    """HF compares each word with each EOS, which would be a billion comparisons here."""
    fields = {"bad_words_ids": [[i % 300] for i in range(20_000)]}
    eos = [300 - i % 300 for i in range(50_000)]
    ProcessorCheck(LLAMA, VOCAB_SIZE)(HFRequest(fields, eos, 5, 9))


def test_a_check_remembers_little() -> None:
    """Digests, however long the configurations were that have passed."""
    check = ProcessorCheck(LLAMA, VOCAB_SIZE)
    tracemalloc.start()
    for i in range(8):
        check(HFRequest({"suppress_tokens": [i] * 50_000}, [2], 5, 9))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 500_000


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bad_words_ids": []}, "non-empty list"),
        ({"bad_words_ids": [[1], []]}, "IndexError: a sequence has no last token"),
        ({"bad_words_ids": [[-1]]}, "names token -1"),
        ({"bad_words_ids": [[301, 2]]}, "names token 301, but the model's tokens are 0 to 300"),
        ({"bad_words_ids": [7]}, "list of lists"),
        ({"sequence_bias": []}, "non-empty list"),
        ({"sequence_bias": [[[], 1.0]]}, "IndexError: a sequence has no last token"),
        ({"sequence_bias": [[[1, 301], 1.0]]}, "names token 301"),
        ({"sequence_bias": [[[1, 2], 1]]}, "list of lists of positive integers and float"),
        ({"encoder_no_repeat_ngram_size": 2.5}, "strictly positive integer"),
        ({"bad_words_ids": [[1, -5]] * 10_000}, "names token -5"),
        ({"sequence_bias": [[[1, 2], "x"]] * 10_000}, r"float, but is .* \.\.\."),
    ],
)
def test_what_hf_refuses(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(VLLMValidationError, match=reason) as refusal:
        ProcessorCheck(LLAMA, VOCAB_SIZE)(HFRequest(fields, [2], 5, 9))
    assert len(str(refusal.value)) < 1000
