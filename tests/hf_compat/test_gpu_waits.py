"""The sampler of hf_compat on an emulated GPU: the CPU's tokens, and what it waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig

from tests.emulated_gpu.device import GPU, emulated_gpu
from vllm.hf_compat.frontend import Frontend
from vllm.hf_compat.logits.sampler import HFSampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

pytestmark = pytest.mark.usefixtures("emulated_library")

VOCABULARY = 300
EOS = 2
PROMPT = [5, 80, 5, 7]

WITHOUT_WAITS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "min_new_tokens": 3},
    {"exponential_decay_length_penalty": (1, 1.5)},
    {"sequence_bias": [[[5], 9.0], [[80, 5], 3.0]], "suppress_tokens": [6, 7]},
    {"bad_words_ids": [[5, 7]], "encoder_repetition_penalty": 1.2},
    {"exponential_decay_length_penalty": (1, 1.5)},
    {"repetition_penalty": 1.3, "min_new_tokens": 3},
    {},
]
"""Greedy requests in several groups, of which the second is a token behind; one is plain."""


class Step(SimpleNamespace):
    """As much of a worker as its sampler needs, with some requests of hf_compat."""

    def __init__(self, device: torch.device, fields: list[dict[str, Any]]) -> None:
        config = LlamaConfig(vocab_size=VOCABULARY)
        frontend = Frontend(GenerationConfig(), config, max_model_len=64, vocab_size=VOCABULARY)
        requests = {}
        for number, given in enumerate(fields):
            params = frontend.to_sampling_params(
                GenerationConfig(eos_token_id=EOS, max_new_tokens=9, **given)
            )
            frontend.finish(params, len(PROMPT))
            requests[str(number)] = SimpleNamespace(
                req_id=str(number),
                sampling_params=params,
                prompt_token_ids=PROMPT[number % 2 :],
                prompt_is_token_ids=None,
                output_token_ids=[],
            )
        super().__init__(
            max_num_reqs=len(requests),
            max_model_len=64,
            device=device,
            model_config=SimpleNamespace(
                logits_processors=None,
                get_vocab_size=lambda: VOCABULARY,
                hf_config=config,
                dtype=torch.float32,
            ),
            vllm_config=SimpleNamespace(additional_config={}),
            input_batch=SimpleNamespace(req_ids=list(requests)),
            requests=requests,
            discard_request_mask=SimpleNamespace(np=np.zeros(len(requests), dtype=bool)),
        )


def answers(device: torch.device, fields: list[dict[str, Any]]) -> tuple[torch.Tensor, list[str]]:
    """Return four tokens of each request, and what has waited for the GPU after the first."""
    logits = torch.randn(4, len(fields), VOCABULARY, generator=torch.Generator().manual_seed(0))
    with emulated_gpu() as gpu:
        step = Step(device, fields)
        sampler: Any = HFSampler(step, Sampler())
        chosen = []
        for number, one in enumerate([(one * 4).to(device) for one in logits]):
            if number == 1:
                gpu.waits.clear()
            step.discard_request_mask.np[1] = number == 1  # as of a prompt that is not complete
            chosen.append(sampler(one, _metadata()).sampled_token_ids)
            for request in step.requests.values():
                if not (number == 1 and request.req_id == "1"):
                    request.output_token_ids.append(-1)  # not known on the CPU yet
        waits = list(gpu.waits)
        return torch.cat([one.cpu() for one in chosen], dim=1), waits


def _metadata() -> SamplingMetadata:
    nothing: Any = None
    return SamplingMetadata(
        temperature=None,
        all_greedy=True,
        all_random=False,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        logprob_token_ids=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=nothing,
        presence_penalties=nothing,
        repetition_penalties=nothing,
        output_token_ids=[],
        spec_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def test_greedy_requests_never_wait() -> None:
    found, waits = answers(GPU, WITHOUT_WAITS)
    expected, _ = answers(torch.device("cpu"), WITHOUT_WAITS)
    assert torch.equal(found, expected)
    assert waits == []
