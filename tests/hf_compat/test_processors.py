"""The worker's processors and draws, against HF's own over whole sequences, bit for bit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, WatermarkingConfig
from transformers.generation.logits_process import LogitsProcessorList

from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.call.support import step_fields
from vllm.hf_compat.logits.batch import Batch
from vllm.hf_compat.logits.draws import draw_tokens
from vllm.hf_compat.rows.row_ids import GUIDE, row_id
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState

pytestmark = pytest.mark.fast

VOCAB_SIZE = 301
MAX_LEN = 256
MAX_BATCH = 6
CPU = torch.device("cpu")
LLAMA = LlamaConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
)
SAMPLE = {"do_sample": True, "top_k": 0}
CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.2},
    {"repetition_penalty": 0.7},
    {"encoder_repetition_penalty": 1.3},
    {"encoder_repetition_penalty": 0.6, "repetition_penalty": 3.0},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 4},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 3},
    {"bad_words_ids": [[5], [1, 2], [0, 1, 2], [7, 7]], "eos_token_id": 5},
    {"sequence_bias": [[[3], -2.5], [[1, 2], 4.0], [[0, 1, 2], float("-inf")]]},
    {"sequence_bias": {(3,): -2.5, (1, 2): 4.0}},
    {"sequence_bias": [[[2], 0.1], [[1, 2], 0.3], [[0, 1, 2], 0.7], [[2, 2], 1e-9]]},
    {"min_length": 30, "eos_token_id": [4, 300]},
    {"min_length": 30, "eos_token_id": [4, VOCAB_SIZE, -1]},
    {"min_new_tokens": 9, "eos_token_id": 4},
    {"min_new_tokens": 2, "min_length": 60, "eos_token_id": 4},
    {"min_length": 30},
    {"forced_bos_token_id": 6},
    {"forced_bos_token_id": 6, "begin_suppress_tokens": [3, 4]},
    {"begin_suppress_tokens": [3, 4]},
    {"forced_eos_token_id": [4, 9]},
    {"exponential_decay_length_penalty": (3, 1.4), "eos_token_id": [4, 9]},
    {"suppress_tokens": [0, 1, 300]},
    {"suppress_tokens": [1, VOCAB_SIZE]},
    {"remove_invalid_values": True},
    {"renormalize_logits": True},
    {"watermarking_config": WatermarkingConfig(context_width=1)},
    {"watermarking_config": WatermarkingConfig(context_width=3, seeding_scheme="selfhash")},
    {**SAMPLE},
    {**SAMPLE, "temperature": 0.7},
    {**SAMPLE, "temperature": 3.1, "top_k": 50},
    {**SAMPLE, "top_k": 5},
    {**SAMPLE, "top_p": 0.8},
    {**SAMPLE, "min_p": 0.1},
    {**SAMPLE, "typical_p": 0.7},
    {**SAMPLE, "epsilon_cutoff": 2e-3},
    {**SAMPLE, "eta_cutoff": 2e-3},
    {**SAMPLE, "top_h": 0.5},
    {**SAMPLE, "temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9},
    {
        **SAMPLE,
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[8, 9]],
        "min_new_tokens": 5,
        "eos_token_id": 4,
        "temperature": 1.2,
        "top_p": 0.95,
        "renormalize_logits": True,
    },
]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """A real model, for the method with which HF builds its list."""
    return LlamaForCausalLM(LLAMA)


def worker_request(req_id: str, prompt: list[int], params: SamplingParams) -> CachedRequestState:
    """Return a request as the engine's worker has it, before its first token."""
    return CachedRequestState(
        req_id=req_id,
        prompt_token_ids=prompt,
        mm_features=[],
        sampling_params=params,
        generator=None,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=[],
    )


class Sequence:
    """One request, as the engine's worker has it and as `generate()` would."""

    def __init__(
        self, model: LlamaForCausalLM, req_id: str, prompt: list[int], fields: dict[str, Any]
    ) -> None:
        config = GenerationConfig(**fields)
        eos = config.eos_token_id
        eos_ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
        max_length = len(prompt) + 40
        params = SamplingParams(temperature=0)
        HFRequest(step_fields(config), eos_ids, len(prompt), max_length).attach(params)
        self.request = worker_request(req_id, prompt, params)
        self.processors = _as_in_generate(model, config, eos_ids, prompt, max_length)

    @property
    def input_ids(self) -> torch.Tensor:
        prompt = self.request.prompt_token_ids or []
        return torch.tensor([[*prompt, *self.request.output_token_ids]], dtype=torch.int64)

    def expected(self, logits: torch.Tensor) -> torch.Tensor:
        """What HF makes of one row."""
        return self.processors(self.input_ids, logits[None].clone())[0]


def _as_in_generate(
    model: LlamaForCausalLM,
    config: GenerationConfig,
    eos_ids: list[int],
    prompt: list[int],
    max_length: int,
) -> LogitsProcessorList:
    """Build HF's list for one prompt, with the preparations of `generate()`."""
    config.max_length = max_length
    if config.min_new_tokens is not None:
        config.min_length = config.min_new_tokens + len(prompt)
    config._eos_token_tensor = torch.tensor(eos_ids) if eos_ids else None
    return model._get_logits_processor(
        config,
        input_ids_seq_length=len(prompt),
        encoder_input_ids=torch.tensor([prompt]),
        device="cpu",
    )


def adversarial(kind: int, generator: torch.Generator) -> torch.Tensor:
    """One row of logits: smooth, rounded to bfloat16 (ties), few values, or with both zeros."""
    row = torch.randn(VOCAB_SIZE, generator=generator) * 4
    if kind == 1:
        return row.bfloat16().float()
    if kind == 2:
        return row.round()
    if kind == 3:
        row[::3], row[1::3] = 0.0, -0.0
    return row


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(actual.view(torch.int32), expected.view(torch.int32))


def process(batch: Batch, logits: torch.Tensor, discarded: np.ndarray) -> torch.Tensor:
    """What the sampler does before it chooses."""
    logits = logits.clone()
    for group in batch.groups:
        if group.pipeline is not None:
            rows = batch.rows_of(group, discarded)
            logits[group.indices] = group.pipeline(rows, logits[group.indices])
    return logits


def make_batch(num_slots: int = 2) -> Batch:
    return Batch(num_slots, VOCAB_SIZE, MAX_LEN, LLAMA, CPU)


@pytest.mark.parametrize("fields", CONFIGURATIONS, ids=lambda fields: "+".join(fields) or "none")
def test_one_configuration(model: LlamaForCausalLM, fields: dict[str, Any]) -> None:
    """Six requests of it with prompts of 1 to 60 tokens, over their whole 40 steps."""
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    sequences = [
        Sequence(model, str(i), [rng.randrange(10) for _ in range(length)], fields)
        for i, length in enumerate((1, 2, 3, 7, 29, 60))
    ]
    batch = make_batch()
    nothing_discarded = np.zeros(len(sequences), dtype=bool)
    changed = False
    for step in range(40):
        batch.update([s.request for s in sequences], {s.request.req_id for s in sequences})
        logits = torch.stack([adversarial(step % 4, generator) for _ in sequences])
        expected = torch.stack([s.expected(row) for s, row in zip(sequences, logits, strict=True)])
        assert_same_bits(process(batch, logits, nothing_discarded), expected)
        changed |= not torch.equal(expected, logits)
        tokens = torch.randint(0, 10, (len(sequences),), generator=generator)
        batch.append(tokens, nothing_discarded)
        for sequence, token in zip(sequences, tokens.tolist(), strict=True):
            sequence.request.output_token_ids.append(token)
    inert: tuple[dict[str, Any], ...] = (
        {},
        SAMPLE,
        {"min_length": 30},
        {"remove_invalid_values": True},
    )
    assert changed == (fields not in inert)


@pytest.mark.parametrize("seed", range(6))
def test_batches_that_change_all_the_time(model: LlamaForCausalLM, seed: int) -> None:
    """Requests of all kinds enter, leave, come back, move rows and throw tokens away."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    batch = make_batch()  # it has to grow
    alive: list[Sequence] = []
    for step in range(100):
        if len(alive) < 9 and rng.random() < 0.5:
            prompt = [rng.randrange(10) for _ in range(rng.randrange(1, 80))]
            alive.append(Sequence(model, f"r{step}", prompt, rng.choice(CONFIGURATIONS)))
        if alive and rng.random() < 0.15:
            alive.remove(rng.choice(alive))
        chosen = rng.sample(alive, min(len(alive), rng.randrange(MAX_BATCH + 1)))
        if not chosen:
            continue
        batch.update([s.request for s in chosen], {s.request.req_id for s in alive})
        discarded = np.array([rng.random() < 0.3 for _ in chosen])
        logits = torch.stack([adversarial(rng.randrange(4), generator) for _ in chosen])
        expected = torch.stack([s.expected(row) for s, row in zip(chosen, logits, strict=True)])
        assert_same_bits(process(batch, logits, discarded), expected)
        tokens = torch.randint(10, (len(chosen),), generator=generator, dtype=torch.int32)
        batch.append(tokens, discarded)
        for sequence, token, gone in zip(chosen, tokens.tolist(), discarded, strict=True):
            if not gone:
                sequence.request.output_token_ids.append(token)


def test_not_a_number_is_removed_as_hf_removes_it(model: LlamaForCausalLM) -> None:
    sequence = Sequence(model, "a", [1, 2], {"remove_invalid_values": True})
    batch = make_batch()
    batch.update([sequence.request], {"a"})
    logits = torch.randn(1, VOCAB_SIZE)
    logits[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    expected = sequence.expected(logits[0])
    assert torch.isfinite(expected).all()
    assert_same_bits(process(batch, logits, np.array([False]))[0], expected)


# --- the life of a request -----------------------------------------------------------------------
def penalised(model: LlamaForCausalLM, prompt: list[int], **fields: Any) -> Sequence:
    sequence = Sequence(model, "a", prompt, {"repetition_penalty": 2.0, "no_repeat_ngram_size": 2})
    for name, value in fields.items():
        setattr(sequence.request, name, value)
    return sequence


def assert_current(batch: Batch, sequence: Sequence) -> None:
    """The batch processes the request's row as HF does for its present tokens."""
    batch.update([sequence.request], {"a"})
    logits = torch.randn(1, VOCAB_SIZE)
    expected = sequence.expected(logits[0])
    assert_same_bits(process(batch, logits, np.array([False]))[0], expected)


@pytest.mark.parametrize("outputs", [[], [4], [4, 8], [9, 9, 9]])
def test_outputs_that_vllm_replaced_are_read_again(
    model: LlamaForCausalLM, outputs: list[int]
) -> None:
    """As after a resumption, or when lost KV blocks shorten a request."""
    sequence, batch = penalised(model, [1, 2]), make_batch()
    for token in (4, 8):
        assert_current(batch, sequence)
        batch.append(torch.tensor([token]), np.array([False]))
        sequence.request.output_token_ids.append(token)
    sequence.request.output_token_ids = outputs
    assert_current(batch, sequence)


def test_outputs_shortened_in_place_are_read_again(model: LlamaForCausalLM) -> None:
    sequence, batch = penalised(model, [1, 2]), make_batch()
    for token in (4, 8):
        assert_current(batch, sequence)
        batch.append(torch.tensor([token]), np.array([False]))
        sequence.request.output_token_ids.append(token)
    sequence.request.output_token_ids.pop()
    assert_current(batch, sequence)


def test_embedded_positions_have_no_token(model: LlamaForCausalLM) -> None:
    sequence = penalised(model, [1, 0, 0, 2], prompt_is_token_ids=[True, False, False, True])
    batch = make_batch()
    batch.update([sequence.request], {"a"})
    logits = torch.ones(1, VOCAB_SIZE)
    assert process(batch, logits, np.array([False]))[0, :3].tolist() == [1.0, 0.5, 0.5]


def test_unknown_tokens_are_an_error(model: LlamaForCausalLM) -> None:
    sequence = penalised(model, [1], output_token_ids=[-1])
    with pytest.raises(RuntimeError, match="tokens that are not known yet"):
        make_batch().update([sequence.request], {"a"})


def test_ended_requests_leave_nothing(model: LlamaForCausalLM) -> None:
    batch = make_batch()
    for number in range(50):
        sequence = penalised(model, [number])
        batch.update([sequence.request], {"a"})
        assert len(batch) == 1
        batch.update([], set())
        assert len(batch) == 0
    assert len(batch._pipelines) == 0
    assert len(batch._tables.seen) == 2


def test_a_guide_that_changes_places_with_a_plain_request(model: LlamaForCausalLM) -> None:
    """Neither has a state of its own, and one that is taken for the other gets its token."""
    guided = Sequence(model, "a", [1, 2], {})
    assert guided.request.sampling_params is not None
    HFRequest({"guidance_scale": 1.5}, [], 2, 42).attach(guided.request.sampling_params)
    guide = replace(guided.request, req_id=row_id("a", GUIDE))
    plain = Sequence(model, "b", [3], {}).request
    batch = make_batch()
    for order in ([guide, plain], [plain, guide]):
        batch.update([guided.request, *order], {"a", "b"})
        (group,) = [one for one in batch.groups if one.guides]
        assert group.guides == [1 + order.index(guide)]


# --- draws ---------------------------------------------------------------------------------------
def test_draws_are_those_of_the_global_generator(model: LlamaForCausalLM) -> None:
    """Alone, and between rows that draw as well or whose draw is thrown away."""
    sequences = [Sequence(model, str(i), [i], SAMPLE) for i in range(4)]
    for i, sequence in enumerate(sequences):
        request = HFRequest.of(sequence.request.sampling_params)
        seeded = HFRequest(request.fields, [], 1, 41, seed=100 + i if i != 2 else None)
        assert sequence.request.sampling_params is not None
        seeded.attach(sequence.request.sampling_params)
    batch = make_batch()
    drawn: list[list[int]] = [[] for _ in sequences]
    steps = torch.randn(30, len(sequences), VOCAB_SIZE)
    discarded = np.zeros(4, dtype=bool)
    for number, logits in enumerate(steps):
        batch.update([s.request for s in sequences], {s.request.req_id for s in sequences})
        discarded[3] = number % 3 == 0
        (group,) = batch.groups
        rows = batch.rows_of(group, discarded)
        tokens, _ = draw_tokens(rows, group.pipeline(rows, logits) if group.pipeline else logits)
        batch.append(tokens, discarded)
        for i in np.flatnonzero(~discarded):
            sequences[i].request.output_token_ids.append(int(tokens[i]))
            drawn[i].append(number)
    for i in (0, 1, 3):
        torch.manual_seed(100 + i)
        expected = [int(torch.multinomial(steps[n, i : i + 1].softmax(-1), 1)) for n in drawn[i]]
        assert sequences[i].request.output_token_ids == expected


def test_a_row_without_any_probability_fails_alone(model: LlamaForCausalLM) -> None:
    sequences = [Sequence(model, str(i), [i], {**SAMPLE, "eos_token_id": 7}) for i in range(3)]
    batch = make_batch()
    batch.update([s.request for s in sequences], {s.request.req_id for s in sequences})
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[0, 20], logits[2, 30] = 1e4, 1e4
    logits[1] = -torch.inf
    rows = batch.rows_of(batch.groups[0], np.zeros(3, dtype=bool))
    tokens, errors = draw_tokens(rows, logits)
    assert tokens[[0, 2]].tolist() == [20, 30]
    assert list(errors) == [1]
    assert "No token has a probability" in str(errors[1])
