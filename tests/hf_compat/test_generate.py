"""Any supported `GenerationConfig`, alone or among others, gets the tokens of `generate()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    WatermarkingConfig,
)

from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import equal_to_the_end, generate, generate_all
from tests.sizes import size
from vllm import SamplingParams

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = pytest.mark.fast

token = st.integers(3, 600)  # the frequent ones, so that biases and bans have an effect
sequences = st.lists(st.lists(token, min_size=1, max_size=3), min_size=1, max_size=4)
biases = st.lists(
    st.tuples(st.lists(token, min_size=1, max_size=3), st.floats(-8, 8)).map(list),
    min_size=1,
    max_size=4,
)
watermarks = st.builds(
    WatermarkingConfig,
    bias=st.floats(0.5, 4),
    seeding_scheme=st.sampled_from(["lefthash", "selfhash"]),
    context_width=st.integers(1, 3),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "repetition_penalty": st.floats(0.6, 2.0),
    "encoder_repetition_penalty": st.floats(0.6, 2.0),
    "no_repeat_ngram_size": st.integers(0, 5),
    "encoder_no_repeat_ngram_size": st.integers(0, 4),
    "bad_words_ids": sequences,
    "sequence_bias": biases,
    "suppress_tokens": st.lists(token, max_size=9),
    "begin_suppress_tokens": st.lists(token, max_size=9),
    "forced_eos_token_id": token,
    "exponential_decay_length_penalty": st.tuples(st.integers(0, 9), st.floats(1.01, 1.6)),
    "min_length": st.integers(0, 60),
    "min_new_tokens": st.integers(0, 20),
    "eos_token_id": token | st.lists(token, min_size=1, max_size=5),
    "renormalize_logits": st.booleans(),
    "remove_invalid_values": st.booleans(),
    "watermarking_config": watermarks,
    "temperature": st.floats(0.3, 2.5),
    "top_k": st.integers(0, 80),
    "top_p": st.floats(0.05, 1.0),
    "min_p": st.floats(0.0, 0.3),
    "typical_p": st.floats(0.1, 1.0),
    "epsilon_cutoff": st.floats(0.0, 0.01),
    "eta_cutoff": st.floats(0.0, 0.01),
    "top_h": st.floats(0.1, 1.0),
}


@st.composite
def configurations(draw: st.DrawFn, *, one_row: bool = False) -> dict[str, Any]:
    """A few fields, of which most concern the whole answer; perhaps of requests of one row only."""
    names = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=6))
    fields = {name: draw(FIELDS[name]) for name in sorted(names)}
    fields |= {"do_sample": draw(st.booleans()), "seed": draw(st.integers(0, 2**31))}
    if not one_row:
        fields |= draw(rows(do_sample=fields["do_sample"]))
    return fields | {"max_new_tokens": draw(st.integers(1, 32))}


def rows(*, do_sample: bool) -> st.SearchStrategy[dict[str, Any]]:
    """What makes several rows of one request; mostly nothing."""
    nothing: st.SearchStrategy[dict[str, Any]] = st.just({})
    guided = st.fixed_dictionaries({"guidance_scale": st.floats(0.2, 3.0)})
    several = st.fixed_dictionaries({"num_return_sequences": st.integers(2, 3)})
    beams = st.integers(2, 4).flatmap(
        lambda num_beams: st.fixed_dictionaries(
            {
                "num_beams": st.just(num_beams),
                "num_return_sequences": st.integers(1, num_beams),
                "length_penalty": st.floats(-2, 2),
                "early_stopping": st.sampled_from([True, False, "never"]),
            }
        )
    )
    return nothing | nothing | guided | beams | (several if do_sample else nothing)


def generate_or_none(
    model: PreTrainedModel, prompt: list[int], config: GenerationConfig
) -> list[list[int]] | None:
    """Return HF's sequences; None where HF fails, because no token has a probability."""
    try:
        return generate_all(model, prompt, config)
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        return None


def compare(
    engine: LLM,
    hf_model: PreTrainedModel,
    prompts: list[list[int]],
    fields: list[dict[str, Any]],
) -> None:
    """Answer a batch, each prompt with its own configuration, and see that each is HF's alone."""
    configs = [GenerationConfig(**one) for one in fields]
    expected = [generate_or_none(hf_model, p, c) for p, c in zip(prompts, configs, strict=True)]
    outputs = engine.generate(as_prompts(prompts), configs, use_tqdm=False)
    for output, of_hf, config in zip(outputs, expected, configs, strict=True):
        if of_hf is None:
            continue
        assert len(output.outputs) == len(of_hf)
        eos = config.eos_token_id if config.eos_token_id is not None else [2]
        fill = {0, 2, *(eos if isinstance(eos, list) else [eos])}
        for one, row in zip(output.outputs, of_hf, strict=True):
            assert equal_to_the_end(list(one.token_ids), row, fill), (config, row)


@settings(
    max_examples=size(12, 250),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(fields=st.lists(configurations(), min_size=8, max_size=8), first=st.integers(0, 24))
def test_mixed_batches(
    engine: LLM,
    hf_model: PreTrainedModel,
    prompts: list[list[int]],
    fields: list[dict[str, Any]],
    first: int,
) -> None:
    """Eight requests of different kinds at once; each is HF's alone."""
    compare(engine, hf_model, prompts[first : first + 8], fields)


@pytest.mark.some(1)
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "top_p": 0.95}], ids=["plain", "warp"])
def test_seeds_alone_and_among_others(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], fields: dict[str, Any]
) -> None:
    configs = [
        GenerationConfig(max_new_tokens=64, do_sample=True, seed=7 * i, **fields)
        for i in range(size(16, 100))
    ]
    runs = [prompts[i % len(prompts)] for i in range(len(configs))]
    expected = [generate(hf_model, p, c) for p, c in zip(runs, configs, strict=True)]
    for first in range(0, len(runs), 32):
        together = slice(first, first + 32)
        outputs = engine.generate(as_prompts(runs[together]), configs[together], use_tqdm=False)
        assert token_ids(outputs) == expected[together]
    for i in range(0, len(runs), size(8, 1)):
        alone = engine.generate(as_prompts(runs[i : i + 1]), configs[i], use_tqdm=False)
        assert token_ids(alone) == [expected[i]]


def test_the_same_prompt_with_two_seeds(engine: LLM, prompts: list[list[int]]) -> None:
    configs = [GenerationConfig(max_new_tokens=32, do_sample=True, seed=i) for i in (1, 2, 1)]
    a, b, c = token_ids(engine.generate(as_prompts(prompts[:1] * 3), configs, use_tqdm=False))
    assert a == c
    assert a != b


def test_without_a_seed_answers_differ(engine: LLM, prompts: list[list[int]]) -> None:
    config = GenerationConfig(max_new_tokens=32, do_sample=True, eos_token_id=-1)
    answers = token_ids(engine.generate(as_prompts(prompts[:1] * 4), config, use_tqdm=False))
    assert len({tuple(answer) for answer in answers}) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.8, "top_k": 60, "repetition_penalty": 1.2},
        {"temperature": 0.9, "min_p": 0.1},
        {"temperature": 0.0, "repetition_penalty": 1.2, "top_k": 5},
    ],
    ids=str,
)
def test_sampling_params_in_hf_terms(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], fields: dict[str, Any]
) -> None:
    """The table of ``vllm.hf_compat.call.display``: unset means off, not HF's default."""
    hf_fields = {"top_k": 0, **fields, "do_sample": fields["temperature"] > 0}
    if not hf_fields["do_sample"]:
        del hf_fields["temperature"]
    config = GenerationConfig(max_new_tokens=40, seed=11, **hf_fields)
    expected = [generate(hf_model, prompt, config) for prompt in prompts[:4]]
    params = SamplingParams(max_tokens=40, seed=11, **fields)
    outputs = engine.generate(as_prompts(prompts[:4]), params, use_tqdm=False)
    assert token_ids(outputs) == expected


@pytest.mark.parametrize("temperature", [0.009, 0.001])
def test_a_temperature_that_upstream_raises(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], temperature: float
) -> None:
    """Two candidates, so near to each other that at 0.01 other seeds choose the second."""
    prompt = prompts[1]
    with torch.inference_mode():
        logits = hf_model(torch.tensor([prompt])).logits[0, -1]
    (best, second), (first, other) = logits.topk(2)
    bias = [[[int(other)], float(best - second) - 4 * temperature]]
    arguments: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": 1}
    arguments |= {"sequence_bias": bias}
    answers = {}
    for degree in (temperature, 0.01):
        fields = {**arguments, "temperature": degree}
        configs = [GenerationConfig(seed=seed, **fields) for seed in range(64)]
        answers[degree] = [generate(hf_model, prompt, config) for config in configs]
        outputs = engine.generate(as_prompts([prompt] * 64), configs, use_tqdm=False)
        assert token_ids(outputs) == answers[degree]
    assert {one for (one,) in answers[temperature]} <= {int(first), int(other)}
    assert answers[temperature] != answers[0.01]


def test_processed_logits_leave_raw_logprobs_alone(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """Logprobs are the model's, before any processor, as vLLM reports them."""
    prompt = prompts[1]
    params = SamplingParams(temperature=0.5, top_k=2, max_tokens=1, seed=1, logprobs=3)
    output = engine.generate(as_prompts([prompt]), params, use_tqdm=False)[0].outputs[0]
    with torch.inference_mode():
        logits = hf_model(torch.tensor([prompt])).logits[0, -1]
    assert output.logprobs is not None
    for token_id, logprob in output.logprobs[0].items():
        assert logprob.logprob == pytest.approx(float(logits.log_softmax(-1)[token_id]), abs=1e-4)
