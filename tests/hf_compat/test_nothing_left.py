"""A request whose fields forbid every token ends with a reason, and without a forbidden token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate
from vllm import SamplingParams
from vllm.hf_compat.call.generate_call import GenerateCall
from vllm.sampling_params import StructuredOutputsParams

if TYPE_CHECKING:
    from vllm import LLM

TOKEN = 300
EVERY_TOKEN = dict.fromkeys(range(4096), float("-inf"))
ALL = "since {} forbid all of them: allow some token"


def fields_of(case: str, word: str) -> dict[str, Any]:
    """Return the fields of vLLM that a case sets."""
    cases: dict[str, dict[str, Any]] = {
        "bad word": {"allowed_token_ids": [TOKEN], "bad_words": [word]},
        "bad word later": {"allowed_token_ids": [TOKEN], "bad_words": [word + word]},
        "end": {"allowed_token_ids": [TOKEN], "stop_token_ids": [TOKEN], "min_tokens": 2},
        "grammar": {
            "structured_outputs": StructuredOutputsParams(json={"const": 7}),
            "bad_words": ["7"],
        },
        "bias": {"logit_bias": EVERY_TOKEN},
        "of generate()": {"allowed_token_ids": [TOKEN]},
    }
    return cases[case]


WORDS = {
    "bad word": "after 0 tokens, " + ALL.format("allowed_token_ids and bad_words"),
    "bad word later": "after 1 tokens, " + ALL.format("allowed_token_ids and bad_words"),
    "end": "after 0 tokens, " + ALL.format("allowed_token_ids and min_tokens"),
    "grammar": "after 0 tokens, " + ALL.format("bad_words and structured_outputs"),
    "bias": "since logit_bias forbids all of them: allow some token",
    "of generate()": ALL.format("allowed_token_ids and the fields of generate()"),
}


@pytest.mark.parametrize(
    ("case", "how"),
    [
        *((case, how) for case in WORDS for how in ({}, {"do_sample": True, "seed": 1})),
        *((case, {"num_beams": 2}) for case in ("bad word", "bias")),
    ],
    ids=str,
)
def test_nothing_is_left(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    case: str,
    how: dict[str, Any],
) -> None:
    """Beside a request that goes on."""
    frontend = engine.input_processor.hf_compat
    assert frontend is not None
    own = {"suppress_tokens": [TOKEN]} if case == "of generate()" else {}
    call = GenerateCall().updated({"max_new_tokens": 4, **how, **own})
    params = frontend.to_sampling_params(call)
    for name, value in fields_of(case, tokenizer.decode([TOKEN])).items():
        setattr(params, name, value)
    prompt = tokenizer("def f(").input_ids
    config = GenerationConfig(max_new_tokens=4)
    beside, output = engine.generate(as_prompts([prompt] * 2), [config, params], use_tqdm=False)
    answer = output.outputs[0]
    assert answer.finish_reason == "error"
    assert WORDS[case] in str(answer.stop_reason)
    assert list(answer.token_ids) == [TOKEN] * (case == "bad word later")
    assert token_ids([beside]) == [generate(hf_model, prompt, config)]


def test_greedy_parameters_of_vllm(engine: LLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """They are searched without HF's processors, on a way of their own."""
    word = tokenizer.decode([TOKEN])
    params = SamplingParams(temperature=0, allowed_token_ids=[TOKEN], bad_words=[word])
    (output,) = engine.generate("def f(", params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "error"
    assert WORDS["bad word"] in str(output.outputs[0].stop_reason)
    assert not output.outputs[0].token_ids


def test_what_generate_answers_when_its_own_fields_forbid_everything(
    engine: LLM, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Greedy search takes the first of equal scores there; this is HF's to decide."""
    prompt = tokenizer("def f(").input_ids
    config = GenerationConfig(max_new_tokens=4, suppress_tokens=[*EVERY_TOKEN])
    outputs = engine.generate(as_prompts([prompt]), config, use_tqdm=False)
    assert token_ids(outputs) == [generate(hf_model, prompt, config)]
