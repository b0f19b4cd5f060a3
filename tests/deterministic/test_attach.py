"""attach(): the logits of a token depend on the model and the tokens before it, on nothing else."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from tests.deterministic.digests import FILES, LONGROPE, logit_digests, random_digests
from tests.deterministic.models import (
    SHAPES,
    bundled_model,
    in_chunks,
    padded,
    random_model,
    token_ids,
)
from vllm.deterministic import attach

pytestmark = pytest.mark.fast

DTYPES = (torch.bfloat16, torch.float16)

LONG_PHI3: dict[str, Any] = {
    "max_position_embeddings": 1024,
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        **LONGROPE,
        "short_factor": LONGROPE["short_factor"][:48],
        "long_factor": LONGROPE["long_factor"][:48],
        "original_max_position_embeddings": 64,
    },
}
"""LongRoPE, whose trained length the tests' tokens pass: Transformers would change its mind."""

CASES = (*SHAPES, "longrope")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def stock(case: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    if case == "longrope":
        return random_model("phi3-mini", dtype, **LONG_PHI3)
    return random_model(case, dtype)


@cache
def attached(case: str) -> PreTrainedModel:
    return attach(stock(case))


@cache
def attached_llama(dtype: torch.dtype) -> PreTrainedModel:
    return attach(bundled_model(dtype))


@cache
def whole(case: str) -> torch.Tensor:
    """Return the logits of 150 tokens: more than two windows of 64, and two blocks of attention."""
    return attached(case)(token_ids(150)).logits


@pytest.mark.parametrize("case", CASES)
def test_the_cache_and_the_chunks_of_a_prompt_change_no_bit(case: str) -> None:
    logits = whole(case)
    assert logits.dtype == torch.float32
    assert torch.equal(in_chunks(attached(case), token_ids(150), [100, 117, 118, 119, 150]), logits)
    assert torch.equal(
        in_chunks(attached(case), token_ids(90), list(range(60, 91))), logits[:, :90]
    )


@pytest.mark.parametrize("case", CASES)
def test_the_batch_and_its_padding_change_no_bit(case: str) -> None:
    """The second row fills its blocks, and the third has padding, which must not go there."""
    model, rows = attached(case), [token_ids(150), token_ids(192, seed=1), token_ids(5, seed=2)]
    logits = model(**padded(rows)).logits
    assert torch.equal(logits[0, 42:], whole(case)[0])
    for row, found in zip(rows[1:], logits[1:], strict=True):
        assert torch.equal(found[-row.shape[1] :], model(row).logits[0])


@pytest.mark.parametrize("case", CASES)
def test_padding_and_a_cache_together_change_no_bit(case: str) -> None:
    """A chunk may be padding to some row alone, and a window's cache may begin behind it."""
    model, rows = attached(case), [token_ids(150), token_ids(190, seed=1)]
    arguments, past, found, start = padded(rows), None, [], 0
    for end in (20, 60, 140, 189, 190):
        done = model(
            input_ids=arguments["input_ids"][:, start:end],
            attention_mask=arguments["attention_mask"][:, :end],
            position_ids=arguments["position_ids"][:, start:end],
            past_key_values=past,
            use_cache=True,
        )
        past, start = done.past_key_values, end
        found.append(done.logits)
    assert torch.equal(torch.cat(found, dim=1)[0, 40:], whole(case)[0])


def test_inference_mode_and_hidden_states_change_no_bit() -> None:
    with torch.inference_mode():
        done = attached("llama")(token_ids(150), output_hidden_states=True)
    assert torch.equal(done.logits, whole("llama"))
    assert len(done.hidden_states) == 3


@pytest.mark.parametrize("case", CASES)
def test_threads_change_no_bit(case: str) -> None:
    logits, threads = whole(case), torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        assert torch.equal(attached(case)(token_ids(150)).logits, logits)
        assert torch.equal(attach(stock(case))(token_ids(150)).logits, logits)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_generate_gives_the_same_tokens_alone_padded_and_without_a_cache(
    dtype: torch.dtype,
) -> None:
    model = attached_llama(dtype)
    rows = [token_ids(n, seed=n, vocabulary=4096) for n in (70, 9)]
    greedy = GenerationConfig(max_new_tokens=6, eos_token_id=None, pad_token_id=0)
    arguments = padded(rows)
    del arguments["position_ids"]
    together = model.generate(**arguments, generation_config=greedy)[:, -6:]
    for row, tokens in zip(rows, together, strict=True):
        alone = model.generate(row, generation_config=greedy)
        uncached = model.generate(row, generation_config=greedy, use_cache=False)
        assert torch.equal(alone[0, -6:], tokens)
        assert torch.equal(uncached[0, -6:], tokens)
        logits = model(alone[:, :-1]).logits
        assert torch.equal(logits[0, -6:].argmax(-1), tokens)


def test_generate_takes_a_growing_cache_and_runs_beams() -> None:
    stock = random_model("gemma2-2b")
    stock.generation_config = GenerationConfig(cache_implementation="static", eos_token_id=None)
    model, ids = attach(stock), token_ids(70)
    beams = model.generate(ids, max_new_tokens=3, num_beams=2, pad_token_id=0)
    alone = model.generate(ids, max_new_tokens=3, pad_token_id=0)
    assert beams.shape == alone.shape == (1, 73)


def test_bits_are_those_committed() -> None:
    assert logit_digests() == json.loads(FILES["logits"].read_text())


def test_instruction_sets_change_no_bit() -> None:
    """The plainest one in a process of its own; which one is taken is decided once in each."""
    command = [sys.executable, "-m", "tests.deterministic.digests", "random"]
    environment = os.environ | {"VLLM_FORK_CPU_ISA": "scalar"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == random_digests()


@pytest.mark.parametrize("case", CASES)
def test_errors_are_no_larger_than_those_of_transformers(case: str) -> None:
    # LongRoPE of Transformers takes the long factors for longer texts only.
    texts = [token_ids(60, seed) for seed in range(3)]
    model = attach(stock(case), max_length=64 if case == "longrope" else None)
    wide = stock(case).double()
    wide.set_experts_implementation("eager")  # others have no float64
    exact = torch.cat([wide(ids).logits for ids in texts])
    # Of most tokens: where two experts are as good, either side may take the other one.
    errors = [
        ((torch.cat(logits).double() - exact).norm(dim=-1) / exact.norm(dim=-1)).median()
        for logits in ([one(ids).logits for ids in texts] for one in (stock(case), model))
    ]
    assert errors[1] < errors[0]


def test_the_bundled_model_is_as_exact_as_in_transformers() -> None:
    ids = token_ids(300, vocabulary=4096)
    exact = bundled_model(torch.float32)(ids).logits
    for dtype in DTYPES:
        expected = bundled_model(dtype)(ids).logits.float()
        found = attached_llama(dtype)(ids).logits
        assert (found - exact).norm() < (expected - exact).norm()


def test_other_models_of_the_process_stay_as_they_are() -> None:
    model = random_model("llama")
    before = model(token_ids(20)).logits
    attached("llama")
    assert torch.equal(model(token_ids(20)).logits, before)
    assert torch.equal(random_model("llama")(token_ids(20)).logits, before)


def test_original_weights_are_released() -> None:
    model = random_model("llama")
    layer: Any = model.get_submodule("model.layers.0")
    weights = [
        weakref.ref(one.weight)
        for one in (layer.self_attn.q_proj, layer.mlp.up_proj, model.lm_head)
    ]
    del layer
    attach(model)
    assert [weight() for weight in weights] == [None] * 3


def test_a_copy_of_a_model_without_its_weights_has_its_bits() -> None:
    other = copy.deepcopy(attached("mixtral-8x7b"))
    assert torch.equal(other(token_ids(150)).logits, whole("mixtral-8x7b"))


def test_tied_embeddings_keep_the_table() -> None:
    model = attached_llama(torch.bfloat16)
    table = bundled_model(torch.bfloat16).get_input_embeddings().weight
    assert torch.equal(model.get_input_embeddings().weight, table)
