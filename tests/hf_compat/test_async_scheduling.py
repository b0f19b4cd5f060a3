"""Asynchronous scheduling, as on GPUs: a step begins before the last one's tokens are known.

vLLM leaves it out on CPUs. Here its runner is told to do it all the same: it is the code that a GPU
runs, with -1 in the place of tokens that have not come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from transformers import GenerationConfig, PreTrainedModel

from tests.engines import bundled_engine
from tests.hf_compat.test_calls import OnlyEvenTokens
from tests.hf_compat.test_parity import as_prompts, counter
from tests.reference import equal_to_the_end, generate_all, generate_batch
from vllm import SamplingParams
from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.config import VllmConfig

PADDING = {0, 2}
CROWDED = {"max_num_batched_tokens": 64, "block_size": 32, "num_gpu_blocks_override": 32}


@contextmanager
def async_engine(**arguments: Any) -> Iterator[LLM]:
    """An engine of the bundled model that schedules asynchronously unless the arguments forbid."""
    check = CpuPlatform.check_and_update_config

    def check_and_schedule(config: VllmConfig) -> None:
        asked = config.scheduler_config.async_scheduling
        check(config)
        config.scheduler_config.async_scheduling = asked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", staticmethod(check_and_schedule))
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # functions go to the worker
        with bundled_engine(max_model_len=512, **{**CROWDED, **arguments}) as llm:
            yield llm


def schedules_asynchronously(worker: Any) -> bool:
    return bool(worker.model_runner.use_async_scheduling)


def count_unknown(worker: Any) -> None:
    """Count from now on the requests that are sampled from with tokens that are not known yet."""
    sampler, worker.num_unknown = worker.model_runner.sampler, 0
    follow_batch = sampler.follow_batch

    def follow(*arguments: Any) -> Any:
        requests = follow_batch(*arguments)
        worker.num_unknown += sum(-1 in request.output_token_ids for request in requests)
        return requests

    sampler.follow_batch = follow


def num_unknown(worker: Any) -> int:
    return int(worker.num_unknown)


@pytest.fixture(scope="module")
def crowded() -> Iterator[LLM]:
    """Chunks of 64 tokens, and a KV cache that is too small for its requests."""
    with async_engine() as llm:
        yield llm


def test_tokens_come_back_a_step_later(crowded: LLM) -> None:
    config = crowded.llm_engine.vllm_config.scheduler_config
    assert config.async_scheduling
    assert str(config.scheduler_cls).endswith("HFAsyncScheduler")
    assert crowded.collective_rpc(schedules_asynchronously) == [True]


FIELDS: dict[str, dict[str, Any]] = {
    "penalty": {"repetition_penalty": 1.3},
    "n-grams": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.1},
    "seed": {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "no_repeat_ngram_size": 3},
    "sequences": {"do_sample": True, "num_return_sequences": 2, "repetition_penalty": 1.2},
    "typical": {"do_sample": True, "typical_p": 0.9, "min_new_tokens": 20},
    "words": {"bad_words_ids": [[17], [23, 40]], "encoder_no_repeat_ngram_size": 2},
    "decay": {"exponential_decay_length_penalty": (4, 1.4), "eos_token_id": 2},
    "watermark": {"watermarking_config": {"greenlist_ratio": 0.4, "bias": 3.0}},
    "beams": {"num_beams": 2, "repetition_penalty": 1.1, "max_new_tokens": 24},
    "guidance": {"guidance_scale": 1.6, "max_new_tokens": 24},
    "end": {"eos_token_id": [198, 11, 13, 25, 199], "repetition_penalty": 1.2},
}


def test_all_kinds_in_one_batch(
    crowded: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """Preempted and resumed, too, whose tokens vLLM sends again."""
    prompts = [prompt[:200] for prompt in prompts][: 2 * len(FIELDS)]
    configs = [
        GenerationConfig(**{"max_new_tokens": 64, "eos_token_id": -1, "seed": i, **fields})
        for i, fields in enumerate([*FIELDS.values()] * 2)
    ]
    crowded.collective_rpc(count_unknown)
    before = counter(crowded, "vllm:num_preemptions")
    outputs = crowded.generate(as_prompts(prompts), configs, use_tqdm=False)
    assert counter(crowded, "vllm:num_preemptions") > before
    assert crowded.collective_rpc(num_unknown) > [200]
    names = [*FIELDS] * 2
    for name, prompt, config, output in zip(names, prompts, configs, outputs, strict=True):
        expected = generate_all(hf_model, prompt, config)
        for one, row in zip(output.outputs, expected, strict=True):
            assert equal_to_the_end(list(one.token_ids), row, PADDING), name


def test_processors_of_the_caller_see_all_tokens(
    crowded: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    arguments = {"max_new_tokens": 12, "eos_token_id": -1, "logits_processor": [OnlyEvenTokens()]}
    outputs = crowded.generate(as_prompts(prompts[:4]), use_tqdm=False, **arguments)
    for prompt, output in zip(prompts, outputs, strict=False):
        (expected,) = generate_batch(hf_model, [prompt], pad=0, **arguments)
        assert list(output.outputs[0].token_ids) == expected


# --- the same tokens as without it, where vLLM's own processors and draws are used ----------------
PARAMS = [
    {"temperature": 0.0, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.3, "top_p": 0.9},
    {"temperature": 0.9, "seed": 5, "top_k": 20, "min_tokens": 30, "stop_token_ids": [198, 11]},
    {"temperature": 0.0, "bad_words": ["self", " in", "import"]},
    {"temperature": 0.7, "seed": 9, "min_p": 0.05, "repetition_penalty": 1.1, "n": 2},
]


def answers(llm: LLM, prompts: list[list[int]]) -> list[list[list[int]]]:
    params = [
        SamplingParams(max_tokens=48, ignore_eos=True, **PARAMS[i % len(PARAMS)])
        for i in range(len(prompts))
    ]
    before = counter(llm, "vllm:num_preemptions")
    outputs = llm.generate(as_prompts(prompts), params, use_tqdm=False)
    assert counter(llm, "vllm:num_preemptions") > before
    return [[list(one.token_ids) for one in output.outputs] for output in outputs]


@pytest.mark.long
@pytest.mark.parametrize(
    "mode",
    [{"hf_compat": True}, {"hf_compat": False, "deterministic": True, "dtype": "bfloat16"}],
    ids=["hf_compat", "deterministic"],
)
def test_a_synchronous_engine_has_the_same_tokens(
    mode: dict[str, Any], prompts: list[list[int]]
) -> None:
    prompts = [prompt[:200] for prompt in prompts][:20]
    found = []
    for asked in (True, False):
        with async_engine(async_scheduling=asked, **mode) as llm:
            assert llm.collective_rpc(schedules_asynchronously) == [asked]
            found.append(answers(llm, prompts))
    assert found[0] == found[1]
