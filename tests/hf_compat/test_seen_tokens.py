"""The worker's state of seen tokens, against HF's processor over whole sequences."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from vllm.hf_compat.request import HFRequest
from vllm.hf_compat.seen_tokens import SeenTokens
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState

VOCAB_SIZE = 301
MAX_BATCH = 6
CPU = torch.device("cpu")


def make_request(
    req_id: str, prompt: list[int] | None, penalty: float, **fields: Any
) -> CachedRequestState:
    params = SamplingParams(temperature=0)
    HFRequest(repetition_penalty=penalty).attach(params)
    return CachedRequestState(
        req_id=req_id,
        prompt_token_ids=prompt,
        mm_features=[],
        sampling_params=params,
        generator=None,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=[],
        **fields,
    )


def penalty_of(request: CachedRequestState) -> float:
    return HFRequest.of(request.sampling_params).repetition_penalty


def hf_row(request: CachedRequestState, row: torch.Tensor) -> torch.Tensor:
    ids = [*(request.prompt_token_ids or []), *request.output_token_ids]
    processor = RepetitionPenaltyLogitsProcessor(penalty_of(request))
    return processor(torch.tensor([ids], dtype=torch.int64), row[None].clone())[0]


@pytest.mark.parametrize("seed", range(8))
def test_batches_that_change_all_the_time(seed: int) -> None:
    """Requests enter, leave, come back, move rows and throw tokens away; every step is HF's."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    seen = SeenTokens(2, VOCAB_SIZE, CPU)  # it has to grow
    alive: list[CachedRequestState] = []
    for step in range(120):
        if len(alive) < 9 and rng.random() < 0.5:
            prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 80))]
            penalty = rng.choice([1.0, 1.2, 0.7, 3.0])
            alive.append(make_request(f"r{step}", prompt, penalty))
        if alive and rng.random() < 0.15:
            alive.remove(rng.choice(alive))
        batch = rng.sample(alive, min(len(alive), rng.randrange(MAX_BATCH + 1)))
        if not batch:
            continue
        seen.update_batch(batch, {request.req_id for request in alive})
        logits = torch.randn(len(batch), VOCAB_SIZE)
        expected = torch.stack([hf_row(r, row) for r, row in zip(batch, logits, strict=True)])
        seen.apply_penalty(logits)
        assert torch.equal(logits, expected)
        tokens = torch.randint(VOCAB_SIZE, (len(batch),), dtype=torch.int32)
        discarded = np.array([rng.random() < 0.3 for _ in batch])
        seen.append(tokens, discarded)
        for request, token, gone in zip(batch, tokens.tolist(), discarded, strict=True):
            if not gone:
                request.output_token_ids.append(token)


def test_rewound_request_is_read_again() -> None:
    """vLLM replaces a request's lists when it rewinds or extends it: nothing stale may stay."""
    request = make_request("a", [1, 2], 1.5)
    seen = SeenTokens(MAX_BATCH, VOCAB_SIZE, CPU)
    for token in (7, 8, 9):
        seen.update_batch([request], {"a"})
        seen.append(torch.tensor([token]), np.array([False]))
        request.output_token_ids.append(token)
    request.output_token_ids = [7]
    request.prompt_token_ids = [1, 2, 3]
    seen.update_batch([request], {"a"})
    logits = torch.randn(1, VOCAB_SIZE)
    expected = hf_row(request, logits[0])
    seen.apply_penalty(logits)
    assert torch.equal(logits[0], expected)


def test_shortened_request_is_read_again() -> None:
    """Lost KV blocks shorten the list of output tokens in place, to be generated again."""
    request = make_request("a", [1, 2], 1.5)
    seen = SeenTokens(MAX_BATCH, VOCAB_SIZE, CPU)
    for token in (7, 8, 9):
        seen.update_batch([request], {"a"})
        seen.append(torch.tensor([token]), np.array([False]))
        request.output_token_ids.append(token)
    del request.output_token_ids[2:]
    seen.update_batch([request], {"a"})
    logits = torch.randn(1, VOCAB_SIZE)
    expected = hf_row(request, logits[0])
    seen.apply_penalty(logits)
    assert torch.equal(logits[0], expected)


def test_waiting_request_keeps_tokens_that_only_the_device_knows() -> None:
    request, other = make_request("a", [1], 2.0), make_request("b", [2], 2.0)
    seen = SeenTokens(MAX_BATCH, VOCAB_SIZE, CPU)
    seen.update_batch([request], {"a"})
    seen.append(torch.tensor([5]), np.array([False]))
    request.output_token_ids.append(-1)
    seen.update_batch([other], {"a", "b"})
    seen.update_batch([other, request], {"a", "b"})
    logits = torch.ones(2, VOCAB_SIZE)
    seen.apply_penalty(logits)
    assert (logits[1] != 1).nonzero().flatten().tolist() == [1, 5]


def test_ended_requests_free_their_state() -> None:
    seen = SeenTokens(1, VOCAB_SIZE, CPU)
    for name in "abcdef":
        seen.update_batch([make_request(name, [1, 2], 1.5)], {name})
        assert len(seen) == 1


def test_embedded_prompt_positions_have_no_token() -> None:
    mixed = make_request("a", [1, 2, 3], 1.5, prompt_is_token_ids=[True, False, True])
    embeds = make_request("b", None, 1.5, prompt_embeds=torch.zeros(4, 8))
    seen = SeenTokens(MAX_BATCH, VOCAB_SIZE, CPU)
    seen.update_batch([mixed, embeds], {"a", "b"})
    logits = torch.ones(2, VOCAB_SIZE)
    seen.apply_penalty(logits)
    assert (logits[0] != 1).nonzero().flatten().tolist() == [1, 3]
    assert torch.equal(logits[1], torch.ones(VOCAB_SIZE))


def test_async_output_appended_later_is_the_same_request() -> None:
    """Under async scheduling the list gets placeholders; the state has the tokens already."""
    request = make_request("a", [1], 2.0)
    seen = SeenTokens(MAX_BATCH, VOCAB_SIZE, CPU)
    seen.update_batch([request], {"a"})
    seen.append(torch.tensor([5]), np.array([False]))
    request.output_token_ids.append(-1)
    seen.update_batch([request], {"a"})
    logits = torch.ones(1, VOCAB_SIZE)
    seen.apply_penalty(logits)
    assert (logits[0] != 1).nonzero().flatten().tolist() == [1, 5]


def test_entering_with_unknown_tokens_is_an_error() -> None:
    request = make_request("a", [1], 2.0)
    request.output_token_ids.append(-1)
    with pytest.raises(RuntimeError, match="not known yet"):
        SeenTokens(MAX_BATCH, VOCAB_SIZE, CPU).update_batch([request], {"a"})


def test_no_penalty_keeps_no_state() -> None:
    seen = SeenTokens(MAX_BATCH, VOCAB_SIZE, CPU)
    seen.update_batch([make_request("a", [1, 2], 1.0)], {"a"})
    assert len(seen) == 0
