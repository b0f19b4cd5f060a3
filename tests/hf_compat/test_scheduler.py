"""Requests of several rows through the scheduler, synchronous and asynchronous.

A worker that has no model, but a KV memory: it writes the tokens that it is told to compute into
the blocks that it is told to use, and finds each row's whole history there before it answers. What
it answers depends on every token of that history, so that a wrong row, block, copy or order changes
all that follows; and each request is compared with the same rules applied to it alone.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import MODEL
from vllm.engine.arg_utils import EngineArgs
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.rows.beam_step import BeamStep
from vllm.hf_compat.rows.row_ids import GUIDE, row_id, split_row_id
from vllm.hf_compat.rows.scheduler import HFAsyncScheduler, HFScheduler
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput

pytestmark = pytest.mark.fast

BLOCK_SIZE = 4
MAX_SEQS = 6
NUM_NEW = 12


def answer(*histories: list[int]) -> int:
    """Return the token that follows."""
    return zlib.crc32(repr(histories).encode()) % 1000


def beam_step(sequences: list[list[int]], prompt_len: int, num_beams: int) -> BeamStep:
    """Return which beams follow; some searches end early."""
    parents = [
        answer(sequences[i % len(sequences)], [i]) % len(sequences) for i in range(num_beams)
    ]
    tokens = [answer(sequences[parent], [i, 1]) for i, parent in enumerate(parents)]
    num_new = len(sequences[0]) + 1 - prompt_len
    if num_new < NUM_NEW and (num_new < 4 or tokens[0] % 5):
        return BeamStep(tokens, parents, None)
    best = [*sequences[parents[0]][prompt_len:], tokens[0]]
    return BeamStep(tokens, parents, [{"token_ids": best, "score": 0.0}])


@dataclass
class Row:
    tokens: list[int]
    block_ids: list[int]
    num_computed: int
    request: HFRequest


@dataclass
class Worker:
    """Follows a scheduler's output as a model runner does."""

    is_async: bool
    rows: dict[str, Row] = field(default_factory=dict)
    memory: dict[int, list[int | None]] = field(default_factory=dict)

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for name in output.finished_req_ids:
            self.rows.pop(name, None)
        for source, target in output.kv_cache_block_copies or []:
            self.memory[target] = list(self.memory[source])
        for new in output.scheduled_new_reqs:
            assert new.prompt_token_ids is not None
            self.rows[new.req_id] = Row(
                list(new.prompt_token_ids),
                list(new.block_ids[0]),
                new.num_computed_tokens,
                HFRequest.of(new.sampling_params),
            )
        self._follow_cached(output)
        for name, num_tokens in output.num_scheduled_tokens.items():
            self._compute(self.rows[name], num_tokens)
        assert sum(output.num_scheduled_tokens.values()) == output.total_num_scheduled_tokens
        assert len(output.num_scheduled_tokens) <= MAX_SEQS
        return self._sample(list(output.num_scheduled_tokens))

    def _follow_cached(self, output: SchedulerOutput) -> None:
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            row, block_ids = self.rows[name], cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                assert block_ids is not None
                row.block_ids = list(block_ids[0])
            elif block_ids is not None:
                row.block_ids += block_ids[0]
            if name in cached.all_token_ids and cached.num_output_tokens[i]:
                row.tokens = list(cached.all_token_ids[name])
            row.num_computed = cached.num_computed_tokens[i]

    def _compute(self, row: Row, num_tokens: int) -> None:
        end = row.num_computed + num_tokens
        assert end <= len(row.tokens)
        for position in range(row.num_computed, end):
            self._block(row, position)[position % BLOCK_SIZE] = row.tokens[position]
        history = [self._block(row, p)[p % BLOCK_SIZE] for p in range(end)]
        assert history == row.tokens[:end]
        row.num_computed = end

    def _block(self, row: Row, position: int) -> list[int | None]:
        return self.memory.setdefault(row.block_ids[position // BLOCK_SIZE], [None] * BLOCK_SIZE)

    def _sample(self, names: list[str]) -> ModelRunnerOutput:
        tokens: dict[str, list[int]] = {name: [] for name in names}
        steps: dict[str, Any] = {}
        for name in names:
            row = self.rows[name]
            request_id, number = split_row_id(name)
            if number or row.num_computed < len(row.tokens):
                continue
            if row.request.num_beams > 1:
                step = self._advance(request_id, names)
                steps[request_id] = {"beam_step": step}
                tokens[name] = [step.tokens[0]]
                continue
            histories = [row.tokens]
            if row.request.is_guided:
                guide = self.rows[row_id(name, GUIDE)]
                assert guide.num_computed == len(guide.tokens)
                histories.append(guide.tokens)
            tokens[name] = [answer(*histories)]
        for name, sampled in tokens.items():
            if self.rows[name].request.num_beams == 1:
                self.rows[name].tokens += sampled
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=list(tokens.values()),
        )
        output.hf_compat = steps or None
        return output

    def _advance(self, request_id: str, names: list[str]) -> BeamStep:
        first = self.rows[request_id]
        num_beams = first.request.num_beams
        beams = [row_id(request_id, beam) for beam in range(num_beams)]
        if len(first.tokens) == first.request.prompt_len:
            assert not set(beams[1:]) & set(names)
            beams = beams[:1]
        assert set(beams) <= set(names)
        sequences = [list(self.rows[beam].tokens) for beam in beams]
        return beam_step(sequences, first.request.prompt_len, num_beams)


def alone(prompt: list[int], request: HFRequest, max_tokens: int) -> list[int]:
    """Return what a request answers by the worker's rules."""
    if request.num_beams > 1:
        sequences = [list(prompt)]
        while True:
            step = beam_step(sequences, len(prompt), request.num_beams)
            if step.finished:
                return list(step.finished[0]["token_ids"])
            sequences = [
                [*sequences[parent], token]
                for parent, token in zip(step.parents, step.tokens, strict=True)
            ]
    answers: list[int] = []
    negative = request.negative_prompt_ids or prompt[-1:]
    for _ in range(max_tokens):
        histories = [[*prompt, *answers]]
        if request.is_guided:
            histories.append([*negative, *answers])
        answers.append(answer(*histories))
    return answers


@functools.cache
def engine_config() -> VllmConfig:
    return EngineArgs(
        model=str(MODEL),
        dtype="float32",
        hf_compat=True,
        max_model_len=128,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=48,
        block_size=BLOCK_SIZE,
    ).create_engine_config()


def make_scheduler(num_blocks: int, *, is_async: bool) -> HFScheduler:
    config = engine_config()
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    config.cache_config.num_gpu_blocks = num_blocks
    config.scheduler_config.async_scheduling = is_async
    kind = HFAsyncScheduler if is_async else HFScheduler
    return kind(
        config,
        KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        StructuredOutputManager(config),
        BLOCK_SIZE,
    )


def make_request(name: str, prompt: list[int], hf_request: HFRequest) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True)
    hf_request.attach(params)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return Request(name, prompt, params, None, block_hasher=hasher)


kinds = st.sampled_from(
    [
        {},
        {"guidance_scale": 2.0},
        {"num_beams": 2},
        {"num_beams": 3},
        {"num_beams": 5},
    ]
)
requests = st.tuples(
    kinds, st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.just(9), max_size=20)
)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@settings(max_examples=60, deadline=None)
@given(drawn=st.lists(requests, min_size=1, max_size=9), num_blocks=st.integers(60, 110))
def test_each_request_answers_as_if_alone(
    is_async: bool,
    drawn: list[tuple[dict[str, Any], list[int], list[int]]],
    num_blocks: int,
) -> None:
    """Chunked prompts, shared prefixes, full batches, and preemption where blocks are scarce."""
    scheduler, worker = make_scheduler(num_blocks, is_async=is_async), Worker(is_async)
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    expected: dict[str, list[int]] = {}
    for i, (fields, prompt, negative) in enumerate(drawn):
        request = HFRequest(
            fields=fields,
            prompt_len=len(prompt),
            max_length=len(prompt) + NUM_NEW,
            negative_prompt_ids=negative if fields.get("guidance_scale") and negative else None,
        )
        scheduler.add_request(make_request(f"r{i}", prompt, request))
        expected[f"r{i}"] = alone(prompt, request, NUM_NEW)

    answers = run(scheduler, worker, is_async=is_async)
    assert answers == expected
    assert pool.get_num_free_blocks() == free
    assert not scheduler.kv_cache_manager.forks
    scheduler.schedule()
    assert not scheduler.kv_cache_manager.guides


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("fields", [{}, {"guidance_scale": 2.0}, {"num_beams": 2}], ids=str)
def test_preempted_requests_start_again(fields: dict[str, Any], is_async: bool) -> None:
    """Two long requests whose blocks do not suffice for both to the end."""
    scheduler, worker = make_scheduler(26, is_async=is_async), Worker(is_async)
    prompts = [[i] * 39 for i in range(2)]
    requests_of = []
    for i, prompt in enumerate(prompts):
        hf_request = HFRequest(fields=fields, prompt_len=39, max_length=39 + NUM_NEW)
        requests_of.append(make_request(f"r{i}", prompt, hf_request))
        scheduler.add_request(requests_of[-1])
    expected = {
        f"r{i}": alone(prompt, HFRequest(fields=fields, prompt_len=39), NUM_NEW)
        for i, prompt in enumerate(prompts)
    }
    assert run(scheduler, worker, is_async=is_async) == expected
    assert sum(request.num_preemptions for request in requests_of) > 0


# --- who has which seats -------------------------------------------------------------------------
def add(scheduler: HFScheduler, name: str, **fields: Any) -> None:
    """Let a request wait; it is one of several rows if it has a field that makes it one."""
    hf_request = HFRequest(fields=fields, prompt_len=2, max_length=2 + NUM_NEW)
    scheduler.add_request(make_request(name, [len(name), 1], hf_request))


def steps(scheduler: HFScheduler, worker: Worker) -> Iterator[set[str]]:
    """Run step after step, and yield the requests that each has scheduled."""
    while scheduler.has_requests():
        output = scheduler.schedule()
        yield {split_row_id(name)[0] for name in output.num_scheduled_tokens}
        if output.total_num_scheduled_tokens or output.finished_req_ids:
            scheduler.update_from_output(output, worker.run(output))


def test_others_keep_seats_while_searches_run_and_wait() -> None:
    """Of six seats five are for searches, of which two have four and the third waits."""
    scheduler, worker = make_scheduler(200, is_async=False), Worker(is_async=False)
    for name in ("s0", "s1", "s2"):
        add(scheduler, name, num_beams=2)
    running = steps(scheduler, worker)
    assert next(running) == {"s0", "s1"}
    add(scheduler, "x0")
    assert next(running) == {"s0", "s1", "x0"}
    add(scheduler, "x1")
    assert next(running) == {"s0", "s1", "x0", "x1"}
    assert {"s2"} <= set().union(*running)


def test_seats_that_become_free_are_kept_for_a_search_that_came_first() -> None:
    scheduler, worker = make_scheduler(200, is_async=False), Worker(is_async=False)
    for i in range(5):
        add(scheduler, f"x{i}")
    running = steps(scheduler, worker)
    next(running)
    add(scheduler, "s", num_beams=4)
    add(scheduler, "late")
    started = [next(running) for _ in range(NUM_NEW + 1)]
    assert not any({"s", "late"} & step for step in started[: NUM_NEW - 1])
    assert {"s", "late"} <= started[-1]


def test_a_lone_search_may_have_all_seats() -> None:
    scheduler, worker = make_scheduler(200, is_async=False), Worker(is_async=False)
    add(scheduler, "s0", num_beams=6)
    add(scheduler, "s1", num_beams=6)
    order = [step for step in steps(scheduler, worker) if step]
    assert order[0] == {"s0"}
    assert {"s1"} in order
    assert {"s0", "s1"} not in order


def test_a_search_that_needs_all_seats_is_overtaken_so_often_and_not_more() -> None:
    """Requests of one row that never end to come are not the end of it."""
    scheduler, worker = make_scheduler(200, is_async=False), Worker(is_async=False)
    add(scheduler, "x0")
    add(scheduler, "s", num_beams=6)
    started = set()
    for number, step in enumerate(steps(scheduler, worker), 1):
        started |= step
        if "s" in step:
            break
        add(scheduler, f"x{number}")
    assert step == {"s"}
    assert len(started - {"s"}) in (MAX_SEQS, MAX_SEQS + 1)  # the first came before it


def test_a_request_does_not_wait_for_all_searches_that_came_before() -> None:
    """Searches that start in their order have overtaken nobody."""
    scheduler, worker = make_scheduler(200, is_async=False), Worker(is_async=False)
    for i in range(40):
        add(scheduler, f"s{i}", num_beams=2)
    running = steps(scheduler, worker)
    searches: set[str] = set()
    for number in range(8):
        while len(searches) < 4 * (number + 1):
            searches |= {name for name in next(running) if name.startswith("s")}
        add(scheduler, f"x{number}")
        assert f"x{number}" in next(running)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@settings(max_examples=40)
@given(
    coming=st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([1, 1, 2, 3, 5, 6])), min_size=1, max_size=20
    )
)
def test_no_kind_of_request_waits_for_ever(is_async: bool, coming: list[tuple[int, int]]) -> None:
    """Whatever comes in which step: everything ends, and no step has more rows than seats."""
    scheduler, worker = make_scheduler(200, is_async=is_async), Worker(is_async)
    arrivals: dict[int, list[Callable[[], None]]] = {}
    for i, (step, rows) in enumerate(coming):
        fields = {"num_beams": rows} if rows > 1 else {}
        arrivals.setdefault(step, []).append(partial(add, scheduler, f"r{i}", **fields))
    answers = run(scheduler, worker, is_async=is_async, arrivals=arrivals)
    assert answers.keys() == {f"r{i}" for i in range(len(coming))}


def run(
    scheduler: HFScheduler,
    worker: Worker,
    *,
    is_async: bool,
    arrivals: dict[int, list[Callable[[], None]]] | None = None,
) -> dict[str, list[int]]:
    """Run all requests, those that come before some step, too; under async scheduling a step is
    scheduled before the last one returns.
    """
    arrivals = arrivals or {}
    answers: dict[str, list[int]] = {}
    in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
    for number in range(3000):
        for arrive in arrivals.get(number, []):
            arrive()
        if number >= max(arrivals, default=0) and not scheduler.has_requests() and not in_flight:
            return answers
        output = scheduler.schedule()
        if output.total_num_scheduled_tokens or output.finished_req_ids:
            in_flight.append((output, worker.run(output)))
        if in_flight and (not is_async or len(in_flight) > 1 or not output.num_scheduled_tokens):
            outputs = scheduler.update_from_output(*in_flight.popleft())
            for one in outputs.values():
                for item in one.outputs:
                    answers.setdefault(item.request_id, []).extend(item.new_token_ids)
    raise AssertionError("the scheduler does not come to an end")
