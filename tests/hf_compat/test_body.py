"""A body in HF's terms, resolved against the model as `generate()` resolves a GenerationConfig."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.display import SAID_BY_BOTH
from vllm.hf_compat.call.request import HFRequest, child_params
from vllm.hf_compat.frontend import Frontend
from vllm.hf_compat.server.body import BODY_KEY, take_body
from vllm.hf_compat.server.openai import HFChatCompletionRequest, HFCompletionRequest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.parallel_sampling import ParentRequest

pytestmark = pytest.mark.fast


def pickled(params: SamplingParams) -> SamplingParams:
    copied = pickle.loads(pickle.dumps(params))
    assert isinstance(copied, SamplingParams)
    return copied


OF_MODEL = dict[str, Any](
    temperature=0.6, top_k=7, top_p=0.9, suppress_tokens=[5], eos_token_id=2, max_new_tokens=33
)
# What the server takes from this model's configuration for fields that a body leaves open.
DEFAULTS = {"temperature": 0.0, "top_k": 7, "top_p": 0.9, "max_tokens": 33}


def frontend_of(**fields: Any) -> Frontend:
    """Return the `Frontend` of a model with this ``generation_config.json``."""
    config = LlamaConfig(vocab_size=64)
    return Frontend(GenerationConfig(**fields), config, max_model_len=256, vocab_size=64)


def resolve(prompt_len: int = 4, **body: Any) -> tuple[SamplingParams, HFRequest]:
    """Return what the engine gets for a body."""
    frontend = frontend_of(**OF_MODEL)
    request = HFCompletionRequest(prompt="x", **body)
    params = request.to_sampling_params(request.max_tokens, DEFAULTS)
    frontend.check(params)
    frontend.finish(params, prompt_len)
    return params, HFRequest.of(params)


SAMPLE = {"do_sample": True, "top_k": 7, "top_p": 0.9, "suppress_tokens": [5]}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"suppress_tokens": [5]}),
        ({"temperature": 0.0}, {"suppress_tokens": [5]}),
        ({"temperature": 0.8}, {**SAMPLE, "temperature": 0.8}),
        ({"do_sample": True}, {**SAMPLE, "temperature": 0.6}),
        ({"do_sample": True, "temperature": 1.0}, SAMPLE),
        ({"do_sample": True, "top_k": -1, "top_p": 0.5, "temperature": 1.0}, {
            "do_sample": True, "top_p": 0.5, "suppress_tokens": [5],
        }),
        ({"do_sample": True, "temperature": 1.0, "min_p": 0.1}, {**SAMPLE, "min_p": 0.1}),
        ({"do_sample": False, "temperature": 0.8}, {"suppress_tokens": [5]}),
        ({"suppress_tokens": [6, 7]}, {"suppress_tokens": [6, 7]}),
        ({"suppress_tokens": None}, {"suppress_tokens": [5]}),
        ({"sequence_bias": [[[3, 4], float("-inf")]]}, {
            "suppress_tokens": [5], "sequence_bias": [[[3, 4], float("-inf")]],
        }),
    ],
    ids=str,
)  # fmt: skip
def test_fields(body: dict[str, Any], fields: dict[str, Any]) -> None:
    assert resolve(**body)[1].fields == fields


@pytest.mark.parametrize(
    ("body", "max_tokens"),
    [
        ({}, 16),
        ({"suppress_tokens": [6]}, 16),
        ({"max_tokens": 40}, 40),
        ({"max_new_tokens": 50}, 50),
        ({"max_new_tokens": 50, "max_tokens": None, "max_length": 9}, 50),
        ({"max_length": 100}, 33),  # the model's max_new_tokens wins, as in generate()
    ],
    ids=str,
)
def test_lengths(body: dict[str, Any], max_tokens: int) -> None:
    params, request = resolve(**body)
    assert params.max_tokens == max_tokens
    assert request.max_length == 4 + max_tokens


def test_end_of_sequence() -> None:
    params, request = resolve(eos_token_id=[8, 9], stop_token_ids=[10])
    assert request.eos_token_ids == [8, 9]
    assert {params._eos_token_id, *params.stop_token_ids} == {8, 9, 10}


def test_nothing_of_the_body_is_left_for_the_engine() -> None:
    params, _ = resolve(no_repeat_ngram_size=2, vllm_xargs={"mine": 1})
    assert params.extra_args is not None
    assert set(params.extra_args) == {"hf_compat", "mine"}


def test_a_length_below_min_tokens_is_refused_here() -> None:
    """The engine's process would end when it verifies the parameters."""
    with pytest.raises(VLLMValidationError, match="less than or equal to max_tokens=3"):
        resolve(max_new_tokens=3, min_tokens=5)


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("length", ["max_new_tokens", "max_length"])
def test_one_length(limit: str, length: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"{length} and {limit} both limit the answer"):
        HFChatCompletionRequest.model_validate({"messages": [], limit: 8, length: 8})


def test_number_of_answers() -> None:
    assert HFCompletionRequest(prompt="x", num_return_sequences=3).n == 3
    assert HFCompletionRequest(prompt="x", num_return_sequences=3, n=3).n == 3
    with pytest.raises(VLLMValidationError, match="num_return_sequences and n are both"):
        HFCompletionRequest(prompt="x", num_return_sequences=3, n=2)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled, SamplingParams.clone])
def test_copies_of_greedy_parameters_that_are_told_to_sample(
    copied: Callable[[SamplingParams], SamplingParams],
) -> None:
    """They keep what the model, or HF, says of sampling."""
    frontend = frontend_of(top_k=7, top_p=0.9, min_p=0.1)
    params = copied(frontend.to_sampling_params())
    params.temperature, params.max_tokens = 0.8, 4
    frontend.finish(params, 4)
    expected = {"do_sample": True, "temperature": 0.8, "top_k": 7, "top_p": 0.9, "min_p": 0.1}
    assert HFRequest.of(params).fields == expected


@pytest.mark.parametrize("do_sample", [True, False])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled, SamplingParams.clone])
def test_copies_ask_for_what_was_asked(
    copied: Callable[[SamplingParams], SamplingParams], do_sample: bool
) -> None:
    """Whatever upstream's constructor makes of a field, the caller has not changed it."""
    values = {name: [1e-6, 1e-3, 0.5, 1.0] for name in SAID_BY_BOTH} | {"top_k": [0, 1, 50]}
    made_anew = []
    for name, value in [(name, one) for name, several in values.items() for one in several]:
        config = GenerationConfig(do_sample=do_sample, **{name: value})
        params = frontend_of().to_sampling_params(config)
        shown = {one: getattr(params, one) for one in SAID_BY_BOTH}
        made_anew += [name] if differ(SamplingParams(**shown), shown) else []
        copies = copied(copied(params))
        assert not differ(copies, shown)
        for one in (params, copies):
            frontend_of().finish(one, 4)
        assert HFRequest.of(copies) == HFRequest.of(params)
    assert set(made_anew) >= ({"temperature"} if do_sample else {"top_k", "top_p"})


def differ(params: SamplingParams, shown: dict[str, Any]) -> bool:
    return any(getattr(params, name) != value for name, value in shown.items())


@pytest.mark.parametrize(
    ("body", "defaults", "fields"),
    [
        ({"temperature": 1e-3}, DEFAULTS, {"temperature": 1e-3}),
        ({"temperature": 1e-6}, DEFAULTS, {"temperature": 1e-6}),
        ({"temperature": 1e-3, "do_sample": True}, DEFAULTS, {"temperature": 1e-3}),
        ({"temperature": 1e-3, "num_return_sequences": 2}, DEFAULTS, {"temperature": 1e-3}),
        ({}, {**DEFAULTS, "temperature": 1e-3}, {"temperature": 1e-3}),
        ({"num_return_sequences": 2}, {**DEFAULTS, "temperature": 0.6}, {"temperature": 0.6}),
    ],
    ids=str,
)
def test_a_temperature_that_upstream_changes(
    body: dict[str, Any], defaults: dict[str, Any], fields: dict[str, Any]
) -> None:
    """It raises a low one, and forgets the model's with HF's number of answers."""
    request = HFCompletionRequest(prompt="x", **body)
    params = request.to_sampling_params(request.max_tokens, defaults)
    frontend_of(**OF_MODEL).finish(params, 4)
    assert HFRequest.of(params).fields == {**SAMPLE, **fields}


def test_the_number_of_answers_is_n() -> None:
    """Whatever the model's own ``num_return_sequences`` is."""
    sampling = frontend_of(do_sample=True, num_return_sequences=3)
    greedy, sampled = SamplingParams(temperature=0), SamplingParams(n=2)
    sampling.finish(greedy, 4)
    sampling.finish(sampled, 4)
    assert (greedy.n, HFRequest.of(greedy).num_rows) == (1, 1)
    assert (sampled.n, HFRequest.of(sampled).num_rows) == (2, 2)
    beams = frontend_of(num_beams=3, num_return_sequences=2)
    for number in (1, 3):
        params = SamplingParams(n=number)
        beams.finish(params, 4)
        assert HFRequest.of(params).fields["num_return_sequences"] == number


@pytest.mark.parametrize("name", ["n", "max_tokens", "min_tokens", "top_k", "logprobs"])
@pytest.mark.parametrize("value", [2.0, 1.5, "2", float("nan")])
def test_what_is_counted_is_whole(name: str, value: Any) -> None:
    """The engine's process would not read the message, and never answer."""
    params = SamplingParams(max_tokens=8)
    setattr(params, name, value)
    with pytest.raises(VLLMValidationError, match=f"^{name}={value!r} is no whole number"):
        frontend_of().finish(params, 4)
    setattr(params, name, 1 << 70)
    with pytest.raises(VLLMValidationError, match=f"^{name}={1 << 70} is beyond what a message"):
        frontend_of().finish(params, 4)


def test_numbers_of_numpy() -> None:
    params = SamplingParams(n=2, max_tokens=8)
    params.n, params.max_tokens, params.top_k = np.int64(2), np.int32(5), np.int8(3)
    params.temperature, params.top_p = np.float32(0.5), np.array(0.9)
    frontend_of().finish(params, 4)
    fields = {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.9}
    assert HFRequest.of(params).fields == fields
    assert json.loads(json.dumps([params.n, params.max_tokens])) == [2, 5]


@pytest.mark.parametrize("name", ["allowed_token_ids", "stop_token_ids", "logprob_token_ids"])
def test_token_ids_are_ints(name: str) -> None:
    """Any other kind would end what reads the engine's messages."""
    for ids in ([5, 6], range(5, 7), np.array([5, 6]), torch.tensor([5, 6]), [np.int64(5), 6]):
        params = SamplingParams(max_tokens=8)
        setattr(params, name, ids)
        frontend_of().finish(params, 4)
        found = getattr(params, name)
        assert (found, {*map(type, found)}) == ([5, 6], {int})
    for wrong in ("5", 5, {5: 6}, torch.tensor(5), [5.0], ["5"]):
        params = SamplingParams(max_tokens=8)
        setattr(params, name, wrong)
        with pytest.raises(VLLMValidationError, match=f"^{name}=.* is no "):
            frontend_of().finish(params, 4)


def test_more_answers_than_beams() -> None:
    """It is HF's to refuse, wherever both numbers come from."""
    reason = r"`num_return_sequences` \(5\) has to be smaller or equal to `num_beams` \(3\)"
    with pytest.raises(VLLMValidationError, match=reason):
        resolve(num_beams=3, n=5)
    frontend = frontend_of(num_beams=3)
    of_the_model = SamplingParams(n=5)
    set_later = frontend.to_sampling_params()
    set_later.n = 5
    for params in (of_the_model, set_later):
        with pytest.raises(VLLMValidationError, match=reason):
            frontend.finish(params, 4)
    as_many = SamplingParams(n=3)
    frontend.finish(as_many, 4)
    assert HFRequest.of(as_many).fields["num_return_sequences"] == 3
    assert as_many.n == 1


@pytest.mark.parametrize("forged", [5, [], {"num_beams": "2"}, {"unknown": 1}, None])
def test_fields_that_no_body_has_checked(forged: Any) -> None:
    """Clients of other endpoints can write anything into ``extra_args``."""
    params = SamplingParams()
    params.extra_args = {BODY_KEY: forged}
    with pytest.raises(VLLMValidationError, match=r"^generation_config.*: "):
        take_body(params)


def test_each_of_several_sequences_has_its_row_of_the_batch() -> None:
    """Whichever vLLM asks for first; and a request that is not hf_compat's is left to vLLM."""
    params, request = resolve(do_sample=True, n=3, seed=5)
    assert (params.n, params.seed, request.row, request.num_rows) == (3, None, 0, 3)
    engine_request: Any = SimpleNamespace(request_id="id", external_req_id="id", params=params)
    parent = ParentRequest(engine_request)
    for index in (2, 0, 1):
        name, child = parent.get_child_info(index)
        own = HFRequest.of(child)
        assert (name, child.n, own.row) == (f"{index}_id", 1, index)
        assert replace(own, row=0) == request
    assert HFRequest.of(params) == request
    assert child_params(SamplingParams(n=2, seed=5), 1) is None
