"""With speculative decoding every request gets the tokens that it gets without: HF's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, PreTrainedModel

from tests.engines import MODEL, bundled_engine
from tests.hf_compat.test_calls import CALLBACKS, FailsAtTheThird, hf_rows
from tests.hf_compat.test_generate import compare, configurations
from tests.hf_compat.test_parity import as_prompts, counter, token_ids
from tests.reference import generate
from tests.sizes import size
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.answers import HFOutput
from vllm.sampling_params import StructuredOutputsParams

if TYPE_CHECKING:
    from vllm import LLM

ENGINES: dict[str, dict[str, Any]] = {
    # With a KV cache too small for the requests.
    "ngram": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        },
        "max_model_len": 512,
        "block_size": 32,
        "num_gpu_blocks_override": 32,
    },
    # Right whenever the token is the best of the model's, and only then.
    "draft_model": {
        "speculative_config": {
            "method": "draft_model",
            "model": str(MODEL),
            "num_speculative_tokens": 3,
        },
    },
}


@pytest.fixture(scope="module", params=list(ENGINES)[: size(1, 2)])
def drafting_engine(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with bundled_engine(**ENGINES[request.param]) as llm:
        yield llm


@settings(
    max_examples=size(3, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    fields=st.lists(configurations(one_row=True), min_size=8, max_size=8),
    first=st.integers(0, 24),
)
def test_mixed_batches(
    drafting_engine: LLM,
    hf_model: PreTrainedModel,
    prompts: list[list[int]],
    fields: list[dict[str, Any]],
    first: int,
) -> None:
    compare(drafting_engine, hf_model, prompts[first : first + 8], fields)


def test_preemption(
    drafting_engine: LLM,
    hf_model: PreTrainedModel,
    prompts: list[list[int]],
) -> None:
    fields = {"max_new_tokens": 24, "do_sample": True, "repetition_penalty": 1.1}
    before = counter(drafting_engine, "vllm:num_preemptions")
    compare(drafting_engine, hf_model, prompts[:16], [fields | {"seed": i} for i in range(16)])
    is_small = drafting_engine.llm_engine.vllm_config.cache_config.num_gpu_blocks == 32
    assert (counter(drafting_engine, "vllm:num_preemptions") > before) == is_small


@pytest.mark.parametrize(
    "fields",
    [{}, {"do_sample": True, "temperature": 0.3, "seed": 5}, {"repetition_penalty": 1.1}],
    ids=str,
)
def test_drafts_are_accepted(
    drafting_engine: LLM,
    hf_model: PreTrainedModel,
    prompts: list[list[int]],
    fields: dict[str, Any],
) -> None:
    """Or all other tests would pass an engine that drops every draft."""
    config = GenerationConfig(max_new_tokens=40, **fields)
    names = [f"vllm:spec_decode_num_{name}_tokens" for name in ("draft", "accepted")]
    before = [counter(drafting_engine, name) for name in names]
    outputs = drafting_engine.generate(as_prompts(prompts[:4]), config, use_tqdm=False)
    assert token_ids(outputs) == [generate(hf_model, prompt, config) for prompt in prompts[:4]]
    drafted, accepted = (
        counter(drafting_engine, name) - count for name, count in zip(names, before, strict=True)
    )
    assert accepted > 0
    assert drafted > accepted or not fields  # the draft model is right about its own best tokens


@pytest.mark.parametrize("make", CALLBACKS.values(), ids=CALLBACKS)
def test_processors_of_the_caller(
    drafting_engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], make: Any
) -> None:
    """They are asked once for each token, and not for drafts that are dropped."""
    arguments = {"max_new_tokens": 24, **make()}
    expected = [hf_rows(hf_model, [p], max_new_tokens=24, **make())[0] for p in prompts[:6]]
    outputs = drafting_engine.generate(as_prompts(prompts[:6]), use_tqdm=False, **arguments)
    assert token_ids(outputs) == expected


def test_a_failing_processor_ends_its_request_alone(
    drafting_engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    fails = drafting_engine.generate(
        as_prompts(prompts[:1]),
        use_tqdm=False,
        max_new_tokens=12,
        logits_processor=[FailsAtTheThird(len(prompts[0]))],
    )[0].outputs[0]
    assert fails.finish_reason == "error"
    assert "no such thing" in str(fails.stop_reason)


@pytest.mark.parametrize(
    "stop",
    [{"eos_token_id": [13, 200, 201, 202, 203]}, {"stop_strings": ["self", "\n\n"]}],
    ids=lambda stop: next(iter(stop)),
)
def test_the_end_within_a_step(
    drafting_engine: LLM,
    engine: LLM,
    prompts: list[list[int]],
    stop: dict[str, Any],
) -> None:
    """What follows the end is in none of an answer's parts."""
    arguments: Any = {"max_new_tokens": 48, "output_scores": True, "output_logits": True, **stop}
    ends = []
    for prompt in prompts[:8]:
        answers = [
            llm.generate(as_prompts([prompt]), use_tqdm=False, **arguments)[0].outputs[0]
            for llm in (drafting_engine, engine)
        ]
        here, there = answers
        assert (here.token_ids, here.text) == (there.token_ids, there.text)
        assert (here.finish_reason, here.stop_reason) == (there.finish_reason, there.stop_reason)
        for one in answers:
            assert isinstance(one, HFOutput)
            assert one.scores is not None
            assert one.logits is not None
            assert len(one.scores) == len(one.logits) == len(one.token_ids)
            assert one.scores.argmax(axis=-1).tolist() == list(one.token_ids)
        ends.append(here.finish_reason)
    assert "stop" in ends


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=40, temperature=0.6, seed=3, logprobs=4),
        SamplingParams(max_tokens=40, temperature=0, presence_penalty=1.0, frequency_penalty=0.4),
        SamplingParams(max_tokens=40, temperature=0, min_tokens=21, stop_token_ids=[13, 200, 201]),
        SamplingParams(max_tokens=40, temperature=0, bad_words=["self", " = ", "if"]),
        SamplingParams(max_tokens=40, temperature=0, allowed_token_ids=list(range(3, 400))),
        SamplingParams(
            max_tokens=40,
            temperature=0,
            repetition_penalty=1.1,
            structured_outputs=StructuredOutputsParams(regex=r"(ab|cd)+\(x, y\)"),
        ),
    ],
    ids=["logprobs", "penalties", "min_tokens", "bad_words", "allowed", "structure"],
)
def test_what_only_vllm_has(
    drafting_engine: LLM, engine: LLM, prompts: list[list[int]], params: SamplingParams
) -> None:
    """vLLM's own processors see each token before the next is chosen."""
    here, there = (
        llm.generate(as_prompts(prompts[:6]), params, use_tqdm=False)
        for llm in (drafting_engine, engine)
    )
    assert token_ids(here) == token_ids(there)
    if params.logprobs is None:
        return
    for one, other in zip(here, there, strict=True):
        steps = zip(one.outputs[0].logprobs or [], other.outputs[0].logprobs or [], strict=True)
        for of_one, of_other in steps:
            assert of_one.keys() == of_other.keys()
            for token, logprob in of_one.items():
                assert logprob.logprob == pytest.approx(of_other[token].logprob, abs=1e-4)
                assert logprob.rank == of_other[token].rank


@pytest.mark.parametrize(
    ("fields", "name"), [({"num_beams": 2}, "num_beams=2"), ({"guidance_scale": 1.5}, "guidance")]
)
def test_requests_of_several_rows_are_refused(
    drafting_engine: LLM, prompts: list[list[int]], fields: dict[str, Any], name: str
) -> None:
    config = GenerationConfig(max_new_tokens=4, **fields)
    with pytest.raises(VLLMValidationError, match=f"{name}.* speculative decoding"):
        drafting_engine.generate(as_prompts(prompts[:1]), config, use_tqdm=False)
