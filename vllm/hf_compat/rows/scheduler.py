"""vLLM's scheduler, for which some requests run as several rows of the workers' batch.

A beam search waits, is preempted and ends as one request. Its prompt is computed once. Then its KV
blocks fork (`kv_copy_on_write`), and each step goes to the workers with one row for each beam, as
requests that are new in this step: their tokens and blocks are other ones than before. The workers'
sampler decides which beams go on (`beam_search`).

A request with guidance has a second row, which sees the negative prompt and then the tokens of the
request. It comes in with the last part of the request's prompt, and is new in each step likewise.

For both, the next step waits for the outcome of the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.grammars.backend import install_backend, wait_for_a_grammar
from vllm.hf_compat.grammars.watch import obstacles
from vllm.hf_compat.rows.admission import Demand, Load, Plan, Seats
from vllm.hf_compat.rows.beam_step import BeamStep
from vllm.hf_compat.rows.kv_copy_on_write import BlockTables, ForkingKVCacheManager
from vllm.hf_compat.rows.row_ids import GUIDE, row_id
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.outputs import ModelRunnerOutput

_Base: Any = Scheduler if TYPE_CHECKING else object
_NEVER = 1 << 60  # a step that does not come


class _RowScheduling(_Base):
    """What a scheduler does for requests of several rows; the rest is its base class's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._num_rows: dict[str, int] = {}  # of each request that has several
        self._rows_of: dict[str, int] = {}  # of each that the workers know with several
        super().__init__(*args, **kwargs)
        install_backend(self.structured_output_manager, self.vllm_config)
        self.max_num_scheduled_tokens: int
        self.kv_cache_manager: Any = ForkingKVCacheManager(self.kv_cache_manager)
        self._token_budget: int = self.max_num_scheduled_tokens
        self._seats = Seats(self._num_seats, self._token_budget)
        self._plan = Plan()

    def add_request(self, request: Request) -> None:
        """As ``Scheduler.add_request``."""
        hf_request = HFRequest.of(request.sampling_params)
        if hf_request.num_batch_rows > 1:
            self._num_rows[request.request_id] = hf_request.num_batch_rows
        if hf_request.is_guided:
            negative = hf_request.negative_prompt_ids or list(request.all_token_ids[-1:])
            self.kv_cache_manager.guide(request.request_id, negative)
        super().add_request(request)

    # --- places in a step --------------------------------------------------------------------
    @property
    def max_num_active_reqs(self) -> int:
        """As in ``Scheduler``; 0 while there is no place for all rows of the next request."""
        if not self._num_rows or not self.waiting:
            return self._num_seats
        next_one = self.waiting.peek_request()
        load = self._load([*self.running, next_one])
        running = set(self.running)
        coming = [one for one in self._plan.first if one not in running and one is not next_one]
        seats = load.rows + self._load(coming).rows
        if next_one not in self._plan.first:
            seats += self._plan.kept
        has_place = seats <= self._num_seats and load.rows + load.tokens <= self._token_budget
        return self._num_seats if has_place and load.tokens <= self._plan.tokens else 0

    @max_num_active_reqs.setter
    def max_num_active_reqs(self, value: int) -> None:
        self._num_seats = value

    def _load(self, requests: Iterable[Request]) -> Load:
        """Return what requests take of a step together."""
        load = Load()
        for request in requests:
            rows = self._num_rows.get(request.request_id, 1)
            load.rows += rows
            load.shared += rows if rows > 1 else 0
            load.tokens += self._num_tokens_to_come(request)
        return load

    def _num_tokens_to_come(self, request: Request) -> int:
        """Return how many tokens a request's guide brings when it comes in."""
        guide = self.kv_cache_manager.guides.get(request.request_id)
        if guide is None or guide.num_computed_tokens:
            return 0
        return len(guide.prompt) + request.num_output_tokens

    def _prepare_step(self) -> None:
        """Choose who may start, and keep room in the batch for rows that vLLM does not count."""
        running = self._load(self.running)
        extra_rows = running.rows - len(self.running)
        waiting = [
            Demand(one, self._num_rows.get(one.request_id, 1), self._num_tokens_to_come(one))
            for one in self.waiting
        ]
        plan = self._plan = self._seats.plan(waiting, running)
        self.waiting.remove_requests({*plan.first, *plan.held})
        self.waiting.prepend_requests(reversed(plan.first))
        self.max_num_scheduled_tokens = self._token_budget - extra_rows - plan.tokens

    def _end_step(self, output: SchedulerOutput) -> None:
        """Let those that could not start wait on, before all others."""
        held = self._plan.held
        self.waiting.prepend_requests(reversed(held))
        several = [one for one in held if one.request_id in self._num_rows]
        self._seats.overtake(several, len(output.scheduled_new_reqs))

    # --- a step ------------------------------------------------------------------------------
    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """As ``Scheduler.schedule``, with all rows."""
        self.max_num_scheduled_tokens = self._token_budget
        if not self._num_rows:
            output = super().schedule(throttle_prefills)
        else:
            self._prepare_step()
            output = super().schedule(throttle_prefills)
            self._end_step(output)
            self._send_rows(output)
        if not output.total_num_scheduled_tokens and not self.running:
            wait_for_a_grammar(self.waiting)
        return output

    def _send_rows(self, output: SchedulerOutput) -> None:
        """Let the workers have all rows of this step's requests, and forget those of ended ones."""
        manager = self.kv_cache_manager
        for request_id in [*output.finished_req_ids]:
            self._num_rows.pop(request_id, None)
            manager.forget(request_id)
            self._drop_rows(output, request_id)
        for request_id in [*output.scheduled_cached_reqs.req_ids]:
            if request_id in manager.forks:
                self._add_beams(output, request_id)
            elif request_id in self._rows_of and request_id not in manager.guides:
                self._start_again(output, request_id)
        for request_id in [*manager.guides.keys() & output.num_scheduled_tokens.keys()]:
            if not self.requests[request_id].is_prefill_chunk:
                self._add_guide(output, request_id)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        for request_id in self._num_rows.keys() & scheduler_output.num_scheduled_tokens.keys():
            request = self.requests[request_id]
            if not request.is_prefill_chunk:
                request.next_decode_eligible_step = _NEVER  # until its outcome is known

    def _add_beams(self, output: SchedulerOutput, request_id: str) -> None:
        """Replace the request of a fork by its beams."""
        request, fork = self.requests[request_id], self.kv_cache_manager.forks[request_id]
        _remove_cached(output.scheduled_cached_reqs, request_id)
        output.finished_req_ids.add(request_id)
        self._drop_rows(output, request_id)
        output.total_num_scheduled_tokens -= output.num_scheduled_tokens[request_id]
        for beam, (sequence, table) in enumerate(zip(fork.sequences, fork.tables, strict=True)):
            row = _row(request, beam, sequence, table)
            _add_row(output, row, num_computed_tokens=len(sequence) - 1)
        copies = [*(output.kv_cache_block_copies or []), *fork.copies]
        output.kv_cache_block_copies = copies or None
        fork.copies = []
        self._rows_of[request_id] = len(fork.tables)

    def _add_guide(self, output: SchedulerOutput, request_id: str) -> None:
        """Add the row that sees the negative prompt."""
        request, guide = self.requests[request_id], self.kv_cache_manager.guides[request_id]
        self._drop_rows(output, request_id)
        sequence = [*guide.prompt, *request.output_token_ids]
        row = _row(request, GUIDE, sequence, guide.table)
        # Its logits are the model's: what else the request asks for is done to its own.
        extra_args = request.sampling_params.extra_args if request.sampling_params else None
        row.mm_features = []
        row.sampling_params = SamplingParams(temperature=0.0, extra_args=extra_args)
        _add_row(output, row, num_computed_tokens=guide.num_computed_tokens)
        guide.num_computed_tokens = len(sequence)
        self._rows_of[request_id] = 2

    def _drop_rows(self, output: SchedulerOutput, request_id: str) -> None:
        """Let the workers forget the rows of a request's last step, besides its own."""
        for row in range(1, self._rows_of.pop(request_id, 0)):
            output.finished_req_ids.add(row_id(request_id, row))

    def _start_again(self, output: SchedulerOutput, request_id: str) -> None:
        """Send a preempted search as a new request: the workers know it with a beam's tokens."""
        request = self.requests[request_id]
        cached = output.scheduled_cached_reqs
        index = cached.req_ids.index(request_id)
        data = NewRequestData.from_request(request, cached.new_block_ids[index] or ())
        data.num_computed_tokens = cached.num_computed_tokens[index]
        _remove_cached(cached, request_id)
        output.finished_req_ids.add(request_id)
        self._drop_rows(output, request_id)
        output.scheduled_new_reqs.append(data)

    # --- its outcome -------------------------------------------------------------------------
    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As ``Scheduler.update_from_output``; a search answers once, when it ends."""
        data: dict[str, dict[str, Any]] = getattr(model_runner_output, "hf_compat", None) or {}
        current = {
            request_id: (request, one)
            for request_id, one in data.items()
            if (request := self.requests.get(request_id)) is not None
            and not request.is_finished()
            and request.num_stale_output_tokens == 0
        }
        awaited = self._awaited(scheduler_output, model_runner_output)
        structured = [one for one in self.requests.values() if one.structured_output_request]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request in awaited:
            request.next_decode_eligible_step = 0
        grammars = obstacles(structured)
        if not current and not grammars:
            return outputs
        answers = {answer.request_id: answer for one in outputs.values() for answer in one.outputs}
        for request_id in grammars.keys() & answers.keys():
            answers[request_id].stop_reason = grammars[request_id]
        for request_id, (request, one) in current.items():
            self._answer(request, one, answers[request_id])
        return outputs

    def _awaited(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[Request]:
        """Return the requests of several rows whose next step waited for this outcome: it has their
        token, and not a part of their prompt or what was in flight when they were preempted.
        """
        return [
            request
            for request_id in self._num_rows.keys() & scheduler_output.num_scheduled_tokens.keys()
            if (request := self.requests.get(request_id)) is not None
            and request.num_stale_output_tokens == 0
            and model_runner_output.sampled_token_ids[
                model_runner_output.req_id_to_index[request_id]
            ]
        ]

    def _answer(self, request: Request, data: dict[str, Any], answer: EngineCoreOutput) -> None:
        """Let what the sampler said besides a token become part of an output."""
        step: BeamStep | None = data.get("beam_step")
        if "error" in data:
            self._stop(request, answer, RequestStatus.FINISHED_ERROR)
            answer.finish_reason = FinishReason.ERROR  # even where the token would have ended it
            answer.stop_reason = data["error"]
            _drop_last_token(answer)
        elif step is None:
            answer.hf_compat = data
        elif step.finished is None:
            self._go_on(request, step)
            answer.new_token_ids = []
        else:
            self._stop(request, answer, RequestStatus.FINISHED_STOPPED)
            answer.new_token_ids = step.finished[0]["token_ids"]
            answer.hf_compat = {"beams": step.finished}

    def _go_on(self, request: Request, step: BeamStep) -> None:
        fork = self.kv_cache_manager.forks.get(request.request_id)
        if fork is None:
            fork = self.kv_cache_manager.fork(request, len(step.tokens))
        fork.continue_with(step.tokens, step.parents)

    def _stop(self, request: Request, answer: EngineCoreOutput, status: RequestStatus) -> None:
        """End a request now, unless its last token did."""
        if answer.finish_reason is None:
            self.finish_requests(request.request_id, status)
            answer.finish_reason = RequestStatus.get_finished_reason(status)

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        """As ``Scheduler._preempt_request``; a search starts again, with the same outcome."""
        if request.request_id not in self._num_rows:
            super()._preempt_request(request, timestamp, drop_stale_output)
            return
        request.next_decode_eligible_step = 0
        if request.request_id in self.kv_cache_manager.guides:
            super()._preempt_request(request, timestamp, drop_stale_output)
            return
        super()._preempt_request(request, timestamp, drop_stale_output=True)
        request._output_token_ids.clear()
        del request._all_token_ids[request.num_prompt_tokens :]
        del request.block_hashes[request.num_prompt_tokens // self.hash_block_size :]


class HFScheduler(_RowScheduling, Scheduler):
    """The scheduler of hf_compat."""


class HFAsyncScheduler(_RowScheduling, AsyncScheduler):
    """The scheduler of hf_compat with asynchronous scheduling."""


def _drop_last_token(answer: EngineCoreOutput) -> None:
    """Take out the token that stands where none could be chosen."""
    answer.new_token_ids = answer.new_token_ids[:-1]
    if answer.new_logprobs is not None:
        answer.new_logprobs = answer.new_logprobs.slice_request(0, len(answer.new_token_ids))


def _row(request: Request, row: int, sequence: list[int], table: BlockTables) -> NewRequestData:
    """Return a row of a request as the workers take a new one."""
    data = NewRequestData.from_request(
        request, tuple([block.block_id for block in group] for group in table)
    )
    data.req_id = row_id(request.request_id, row)
    data.prompt_token_ids = sequence
    return data


def _add_row(output: SchedulerOutput, row: NewRequestData, num_computed_tokens: int) -> None:
    """Schedule the rest of a row's tokens."""
    row.num_computed_tokens = num_computed_tokens
    num_tokens = row.prompt_len - num_computed_tokens
    output.scheduled_new_reqs.append(row)
    output.num_scheduled_tokens[row.req_id] = num_tokens
    output.total_num_scheduled_tokens += num_tokens


def _remove_cached(cached: CachedRequestData, request_id: str) -> None:
    """Take a request out of the parallel lists of ``CachedRequestData``."""
    index = cached.req_ids.index(request_id)
    for values in _parallel_lists(cached):
        if values:
            del values[index]
    cached.resumed_req_ids.discard(request_id)
    cached.all_token_ids.pop(request_id, None)


def _parallel_lists(cached: CachedRequestData) -> Iterator[list[Any]]:
    yield cached.req_ids
    yield cached.new_token_ids
    yield cached.new_block_ids
    yield cached.num_computed_tokens
    yield cached.num_output_tokens
