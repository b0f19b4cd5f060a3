"""A request that `generate()` fails on ends with the reason, and the others are as without it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, PreTrainedModel
from transformers.generation import StoppingCriteria

from tests.hf_compat.test_calls import hf_rows
from tests.hf_compat.test_own_processors import engine_rows
from tests.hf_compat.test_parity import as_prompts
from tests.hf_compat.test_processors import (
    SAMPLE,
    VOCAB_SIZE,
    Sequence,
    assert_same_bits,
    make_batch,
    model,  # noqa: F401
)
from vllm.hf_compat.call.generate_call import Callbacks, GenerateCall
from vllm.hf_compat.call.request import HFRequest

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from vllm import LLM

EVERY_TOKEN = list(range(4096))

# What `generate()` fails on after it has begun, and what it says.
FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "length_penalty": ({"num_beams": 2, "length_penalty": 1e308}, "OverflowError: "),
    "a smaller one": ({"num_beams": 2, "length_penalty": 400.0}, "OverflowError: "),
    "decay": (
        {"exponential_decay_length_penalty": (1, 1e300), "min_new_tokens": 15},
        "OverflowError: ",
    ),
    "nothing to sample": ({**SAMPLE, "suppress_tokens": EVERY_TOKEN}, "No token has a prob"),
    "nothing for top_h": (
        {**SAMPLE, "top_h": 0.5, "suppress_tokens": EVERY_TOKEN},
        "No token has a prob",
    ),
    "nothing for beams": (
        {"do_sample": True, "num_beams": 3, "suppress_tokens": EVERY_TOKEN},
        "No token has a prob",
    ),
}
GOOD: list[dict[str, Any]] = [
    {},
    {"exponential_decay_length_penalty": (1, 1.01), "min_new_tokens": 15},
    {"do_sample": True, "top_h": 0.5, "seed": 3},
    {"num_beams": 2, "length_penalty": 2.0},
]


def test_bad_requests_beside_good_ones(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """In one batch; the engine goes on afterwards."""
    frontend = engine.input_processor.hf_compat
    assert frontend is not None
    calls = [{"max_new_tokens": 20, **fields} for fields, _ in FAILING.values()]
    good = [{"max_new_tokens": 20, **fields} for fields in GOOD]
    prompt = prompts[1]
    params = [frontend.to_sampling_params(GenerateCall().updated(call)) for call in [*calls, *good]]
    outputs = engine.generate(as_prompts([prompt] * len(params)), params, use_tqdm=False)
    for (fields, reason), output in zip(FAILING.values(), outputs, strict=False):
        assert output.outputs[0].finish_reason == "error"
        assert reason in str(output.outputs[0].stop_reason)
        with pytest.raises((OverflowError, RuntimeError, ValueError)):
            hf_rows(hf_model, [prompt], max_new_tokens=20, **fields)
    expected = [hf_rows(hf_model, [prompt], **call) for call in good]
    answers = [[list(output.outputs[0].token_ids)] for output in outputs[len(calls) :]]
    assert answers == expected
    assert engine_rows(engine, [prompt] * len(good), good) == expected


class NotHere(LogitsProcessor):
    """Cannot be unpickled in another process than this one."""

    def __reduce__(self) -> Any:
        return _in_process, (os.getpid(),)


def _in_process(pid: int) -> NotHere:
    if os.getpid() != pid:
        raise ImportError("there is nothing of that name")
    return NotHere()


class Criterion(StoppingCriteria):
    """The same for a criterion of beams."""

    __reduce__ = NotHere.__reduce__


@pytest.mark.parametrize(
    "fields",
    [
        {"logits_processor": [NotHere()]},
        {"logits_processor": [NotHere()], "num_beams": 2},
        {"stopping_criteria": [Criterion()], "num_beams": 2},
    ],
    ids=["processor", "of beams", "criterion"],
)
def test_what_the_worker_cannot_load(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], fields: dict[str, Any]
) -> None:
    good = {"max_new_tokens": 8}
    answers = engine_rows(engine, prompts[:3], [good, {**good, **fields}, good])
    expected = [hf_rows(hf_model, [prompt], **good) for prompt in prompts[:3]]
    assert answers == [expected[0], None, expected[2]]


# --- the rows of a shared pipeline ---------------------------------------------------------------
CONFIGURATION = {
    **SAMPLE,
    "repetition_penalty": 1.3,
    "temperature": 0.7,
    "exponential_decay_length_penalty": (1, 1e200),
    "eos_token_id": 4,
    "top_p": 0.9,
    "renormalize_logits": True,
}


def test_other_rows_have_the_bits_that_they_have_without_it(
    model: LlamaForCausalLM,  # noqa: F811
) -> None:
    """The third step of the decay overflows for the sequence that is ahead of the others."""
    sequences = [Sequence(model, str(i), [i + 1, 7], CONFIGURATION) for i in range(4)]
    sequences[1].request.output_token_ids = [5, 6, 7, 8]
    batch = make_batch()
    batch.update([s.request for s in sequences], {s.request.req_id for s in sequences})
    (group,) = batch.groups
    assert group.pipeline is not None
    logits = torch.randn(4, VOCAB_SIZE) * 4
    expected = [sequences[i].expected(logits[i]) for i in (0, 2, 3)]
    rows = batch.rows_of(group, np.zeros(4, dtype=bool))
    scores, errors = group.pipeline.process(rows, logits)
    assert list(errors) == [1]
    assert isinstance(errors[1], OverflowError)
    assert_same_bits(scores[[0, 2, 3]], torch.stack(expected))


class DeviceIsGone(LogitsProcessor):
    """Says what CUDA says after a failure."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_an_error_of_the_device_is_no_requests(model: LlamaForCausalLM) -> None:  # noqa: F811
    sequence = Sequence(model, "a", [1, 7], {})
    assert sequence.request.sampling_params is not None
    HFRequest(pickled=Callbacks([DeviceIsGone()]).pack()).attach(sequence.request.sampling_params)
    batch = make_batch()
    batch.update([sequence.request], {"a"})
    (group,) = batch.groups
    assert group.pipeline is not None
    rows = batch.rows_of(group, np.array([False]))
    with pytest.raises(torch.OutOfMemoryError):
        group.pipeline.process(rows, torch.zeros(1, VOCAB_SIZE))
