"""What is listed of a row's likeliest tokens does not depend on how many others ask for."""

from __future__ import annotations

import torch

from vllm.hf_layers.ordered_logprobs import OrderedLogprobs
from vllm.v1.sample.sampler import Sampler


def rows_with_equals() -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of logits in bfloat16, of which many are equal, and a token of each row."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4096, generator=generator).bfloat16().float()
    logits[0] = 1.0
    logits[1, 7:] = -torch.inf
    tokens = torch.randint(4096, (50,), generator=generator)
    return logits.log_softmax(-1), tokens


def test_more_tokens_leave_the_first_ones_as_they_are() -> None:
    logprobs, tokens = rows_with_equals()
    most = OrderedLogprobs.gather_logprobs(logprobs, 20, tokens)
    for count in (0, 1, 2, 5, 19):
        found = OrderedLogprobs.gather_logprobs(logprobs, count, tokens)
        assert torch.equal(found.logprob_token_ids, most.logprob_token_ids[:, : count + 1])
        assert torch.equal(found.logprobs, most.logprobs[:, : count + 1])
    alone = [
        OrderedLogprobs.gather_logprobs(row[None], 20, token[None]).logprob_token_ids
        for row, token in zip(logprobs, tokens, strict=True)
    ]
    assert torch.equal(torch.cat(alone), most.logprob_token_ids)


def test_numbers_are_upstreams() -> None:
    logprobs, tokens = rows_with_equals()
    ours = OrderedLogprobs.gather_logprobs(logprobs, 20, tokens)
    with torch.compiler.set_stance("force_eager"):
        theirs = Sampler.gather_logprobs(logprobs, 20, tokens)
    assert torch.equal(ours.logprobs, theirs.logprobs)
    assert torch.equal(ours.selected_token_ranks, theirs.selected_token_ranks)
    assert ours.logprob_token_ids.dtype == theirs.logprob_token_ids.dtype
    assert torch.equal(ours.logprob_token_ids[:, 0], theirs.logprob_token_ids[:, 0])
