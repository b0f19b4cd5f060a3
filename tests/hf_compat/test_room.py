"""A request of several rows that cannot run is refused in one sentence; one that can is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import GenerationConfig

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.rows.capacity import Room, check_beams, check_guidance
from vllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from vllm import LLM


def search(num_beams: int, prompt_len: int = 4, max_length: int = 8, **more: Any) -> HFRequest:
    fields = {"num_beams": num_beams}
    return HFRequest(fields=fields, prompt_len=prompt_len, max_length=max_length, **more)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(logprobs=2), "logprobs"),
        (SamplingParams(prompt_logprobs=2), "prompt_logprobs"),
        (SamplingParams(stop=["x"]), "stop"),
        (SamplingParams(stop_token_ids=[7]), "stop_token_ids"),
        (SamplingParams(presence_penalty=0.5), "presence_penalty"),
        (SamplingParams(frequency_penalty=-0.5), "frequency_penalty"),
    ],
)
def test_what_beams_do_not_have(params: SamplingParams, name: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^{name} is not available with num_beams=2"):
        check_beams(search(2), params, None)


def test_batches_embeddings_and_streams() -> None:
    check_beams(search(2), SamplingParams(), None)
    with pytest.raises(VLLMValidationError, match="as_batch is not available"):
        check_beams(search(2, num_rows=3), SamplingParams(), None)
    with pytest.raises(VLLMValidationError, match="prompt_embeds is not available"):
        check_beams(search(2), SamplingParams(), torch.zeros(4, 8))
    with pytest.raises(VLLMValidationError, match="Beams are not streamed"):
        check_beams(search(2), SamplingParams(output_kind=RequestOutputKind.DELTA), None)


def room(num_blocks: int, **changes: bool | int | object) -> Room:
    model = SimpleNamespace(is_hybrid=False, is_attention_free=False, max_model_len=100)
    parallel = SimpleNamespace(pipeline_parallel_size=1, decode_context_parallel_size=1)
    config = SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        kv_transfer_config=None,
        speculative_config=None,
        additional_config={},
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=64),
        cache_config=SimpleNamespace(block_size=16, num_gpu_blocks=num_blocks),
    )
    for name, value in changes.items():
        owner = next(part for part in (model, parallel, config) if hasattr(part, name))
        setattr(owner, name, value)
    return Room(config)


def test_room_for_the_longest_search() -> None:
    """A prompt of 40 tokens shares 2 blocks; 4 beams of 100 tokens have 5 more each; 1 is null."""
    longest = search(4, prompt_len=40, max_length=100)
    room(23).check(longest)
    with pytest.raises(VLLMValidationError, match="may need 22 KV cache blocks, and there are 21"):
        room(22).check(longest)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_hybrid": True}, 'layers .* that keep states, .*: use hf_compat="exact"'),
        ({"is_attention_free": True}, 'layers .* that keep states, .*: use hf_compat="exact"'),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"decode_context_parallel_size": 2}, "context parallelism"),
        ({"kv_transfer_config": object()}, "a KV connector"),
        ({"speculative_config": object()}, "speculative decoding"),
    ],
)
def test_engines_without_beams(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"not available with {reason}"):
        room(100, **changes).check(search(2))


def guided(**more: Any) -> HFRequest:
    fields = {"guidance_scale": 1.5}
    return HFRequest(**{"fields": fields, "prompt_len": 4, "max_length": 8, **more})


def test_guidance() -> None:
    check_guidance(guided(negative_prompt_ids=[0, 63]), None, 64)
    with pytest.raises(VLLMValidationError, match="names token 64, but the model's tokens are 0"):
        check_guidance(guided(negative_prompt_ids=[0, 64]), None, 64)
    with pytest.raises(VLLMValidationError, match="not available with num_beams=2"):
        check_guidance(guided(fields={"guidance_scale": 2.0, "num_beams": 2}), None, 64)
    with pytest.raises(VLLMValidationError, match="not available with prompt_embeds"):
        check_guidance(guided(), torch.zeros(4, 8), 64)


def test_room_for_the_negative_prompt() -> None:
    """It comes in at once, with the whole answer after the last preemption: 57 + 4 < 64 - 2."""
    room(100).check(guided(negative_prompt_ids=[1] * 57))
    with pytest.raises(VLLMValidationError, match="are 62 tokens, and must be fewer than 62"):
        room(100).check(guided(negative_prompt_ids=[1] * 58))
    room(6).check(guided(negative_prompt_ids=[1] * 57))
    with pytest.raises(VLLMValidationError, match="may need 5 KV cache blocks, and there are 4"):
        room(5).check(guided(negative_prompt_ids=[1] * 57))
    with pytest.raises(VLLMValidationError, match="are 61 tokens, more than max_model_len=60"):
        room(100, max_model_len=60).check(guided(negative_prompt_ids=[1] * 57))


def test_more_beams_than_places(engine: LLM) -> None:
    with pytest.raises(VLLMValidationError, match="raise max_num_seqs"):
        engine.generate("x", GenerationConfig(num_beams=4000), use_tqdm=False)


def test_searches_leave_seats_to_others(engine: LLM) -> None:
    """Ten searches have more rows than the batch; a request that comes after them overtakes all."""
    llm_engine = engine.llm_engine
    configs = [GenerationConfig(num_beams=32, max_new_tokens=12)] * 10
    for i, config in enumerate([*configs, GenerationConfig(max_new_tokens=3)]):
        llm_engine.add_request(str(i), "def f(", config)
    ended: list[str] = []
    while llm_engine.has_unfinished_requests():
        ended += [one.request_id for one in llm_engine.step() if one.finished]
    assert ended[0] == "10"
    assert sorted(ended) == sorted(map(str, range(11)))
