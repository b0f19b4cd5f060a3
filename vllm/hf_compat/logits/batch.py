"""What a worker keeps of the requests whose next token is more than the best of the logits.

HF's processors look at the whole ``input_ids`` of a sequence in every step. Here a request's prompt
is written once, when it enters the batch, into tables on the device; after that each step adds one
token, on the device, without reading tokens back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
import torch
from transformers import PretrainedConfig

from vllm.fork.on_device import on_device
from vllm.fork_kernels.logits.seen_tokens import mark_seen_tokens, num_mask_words
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.logits.draws import Draws, DrawSource
from vllm.hf_compat.logits.pipeline import Pipeline
from vllm.hf_compat.rows.row_ids import GUIDE, row_id, split_row_id

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState


@dataclass(eq=False, slots=True)
class RequestState:
    """A request's row in the tables, and what it was built from.

    Attributes:
        request: HF's semantics for it.
        pipeline: what happens to its logits.
        slot: its row in the tables.
        prompt_token_ids: the very list that the request had.
        output_token_ids: likewise.
        known_prompt: the prompt's tokens; positions given as embeddings have none, as in HF.
        num_outputs: how many output tokens are in the tables.
        draws: of a request that samples; None where the global generator serves each step.
        prompt_ids: the known prompt as int64 [1, prompt_len], once n-grams were looked for there.
    """

    request: HFRequest
    pipeline: Pipeline
    slot: int
    prompt_token_ids: list[int] | None
    output_token_ids: list[int]
    known_prompt: list[int]
    num_outputs: int
    draws: Draws | None
    prompt_ids: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """HF's ``input_ids.shape[1]``."""
        return len(self.known_prompt) + self.num_outputs

    def continues(self, request: CachedRequestState) -> bool:
        """Whether `request` still consists of what is in the tables.

        vLLM replaces or shortens a list when it rewinds or extends a request behind the sampler's
        back (resumption after preemption, streaming input, lost KV blocks); otherwise it appends
        to it what was sampled.
        """
        return (
            self.prompt_token_ids is request.prompt_token_ids
            and self.output_token_ids is request.output_token_ids
            and self.num_outputs == len(request.output_token_ids)
        )


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch, as a pipeline sees them.

    Attributes:
        states: of the rows' requests.
        discarded: whether a row's token is thrown away because its prompt is not complete yet.
        tables: of the batch.
        unguided: logits after the negative prompts, float32 [num_rows, vocab_size], if the
            pipeline guides.
    """

    states: Sequence[RequestState]
    discarded: Sequence[bool]
    tables: Tables
    unguided: torch.Tensor | None = None

    @cached_property
    def slots(self) -> torch.Tensor:
        """The rows of the tables, int32 [num_rows]."""
        return on_device([state.slot for state in self.states], self.tables.device, torch.int32)

    def select(self, indices: Sequence[int]) -> Rows:
        """Return some of the rows."""
        return Rows(
            [self.states[i] for i in indices],
            [self.discarded[i] for i in indices],
            self.tables,
            None if self.unguided is None else self.unguided[self.tables.indices(indices)],
        )

    def ids_of_length(self, length: int) -> torch.Tensor:
        """Return int64 [num_rows, length] of which only the shape may be read."""
        return self.tables.nothing.expand(len(self.states), length)

    def token_ids(self, width: int | None = None) -> torch.Tensor:
        """Return the last `width` tokens, by default all, int64 [num_rows, width].

        They are aligned to the right; what is before a shorter sequence is an id beyond the
        vocabulary, which matches nothing.
        """
        return self.tables.token_ids(self.states, width)


class Tables:
    """What requests have seen, one row for each, on the device.

    Args:
        num_rows: at first.
        vocab_size: width of the logits.
        max_len: the longest sequence.
        device: where the logits are.
        model_dtype: in which the model computes them.

    Attributes:
        seen: bit mask of all tokens of a sequence.
        in_prompt: bit mask of the tokens of its prompt.
        tokens: int32 [num_rows, max_len], the sequence itself.
    """

    def __init__(
        self,
        num_rows: int,
        vocab_size: int,
        max_len: int,
        device: torch.device,
        model_dtype: torch.dtype = torch.float32,
    ) -> None:
        words = num_mask_words(vocab_size)
        self._vocab_size = vocab_size
        self.device = device
        self.model_dtype = model_dtype
        self.seen = torch.zeros(num_rows, words, dtype=torch.int32, device=device)
        self.in_prompt = torch.zeros(0, words, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(0, max_len, dtype=torch.int32, device=device)
        self.nothing = torch.zeros(1, 1, dtype=torch.int64, device=device)

    def indices(self, values: Sequence[int]) -> torch.Tensor:
        """Return places as int64 on the device: a list as an index would wait for it."""
        return on_device(values, self.device)

    def grow(self, num_rows: int) -> None:
        """Make room for more requests."""
        self.seen = _grown(self.seen, num_rows)

    def write(self, state: RequestState) -> None:
        """Write the whole sequence of a request."""
        sequence = np.asarray(
            [*state.known_prompt, *state.output_token_ids[: state.num_outputs]], np.int32
        )
        if (sequence < 0).any():
            raise RuntimeError(
                "a request entered the batch with tokens that are not known yet; its logits cannot "
                "be processed"
            )
        ids = on_device(sequence, self.device, torch.int32)
        self._mark(self.seen, state.slot, ids)
        if state.pipeline.reads_prompt:
            self.in_prompt = _grown(self.in_prompt, len(self.seen))
            self._mark(self.in_prompt, state.slot, ids[: len(state.known_prompt)])
        if state.pipeline.reads_tokens:
            self.tokens = _grown(self.tokens, len(self.seen))
            self.tokens[state.slot, : len(ids)] = ids

    def append(self, states: Sequence[RequestState], token_ids: torch.Tensor) -> None:
        """Add one token, int [num_states], to each of some requests; `num_outputs` counts it."""
        slots = on_device([state.slot for state in states], self.device, torch.int32)
        mark_seen_tokens(self.seen, slots, token_ids)
        reading = [i for i, state in enumerate(states) if state.pipeline.reads_tokens]
        if reading:
            rows = self.indices([states[i].slot for i in reading])
            columns = self.indices([states[i].num_tokens - 1 for i in reading])
            self.tokens[rows, columns] = token_ids[self.indices(reading)].to(torch.int32)

    def token_ids(self, states: Sequence[RequestState], width: int | None) -> torch.Tensor:
        lengths = self.indices([state.num_tokens for state in states])
        if width is None:
            width = max(state.num_tokens for state in states)
        positions = torch.arange(width, device=self.device) + (lengths - width)[:, None]
        slots = self.indices([state.slot for state in states])
        ids = self.tokens[slots[:, None], positions.clamp(min=0)].to(torch.int64)
        return ids.masked_fill_(positions < 0, self._vocab_size)

    def _mark(self, mask: torch.Tensor, slot: int, token_ids: torch.Tensor) -> None:
        mask[slot].zero_()
        slots = torch.full((len(token_ids),), slot, dtype=torch.int32, device=self.device)
        mark_seen_tokens(mask, slots, token_ids)


def _grown(table: torch.Tensor, num_rows: int) -> torch.Tensor:
    missing = num_rows - len(table)
    return torch.cat([table, table.new_zeros(missing, table.shape[1])]) if missing > 0 else table


@dataclass(frozen=True)
class Group:
    """Rows of a batch that share a pipeline; None is plain greedy search.

    Attributes:
        indices: their places in the batch.
        device: where the logits are.
        search: the request that they are the beams of, in their order; None if they are not.
        guides: the places of the rows that see the negative prompts; empty without guidance.
    """

    pipeline: Pipeline | None
    indices: list[int]
    device: torch.device
    search: str | None = None
    guides: list[int] = field(default_factory=list)

    @cached_property
    def places(self) -> torch.Tensor:
        """`indices` as int64 on the device, for as long as the batch stays the same."""
        return on_device(self.indices, self.device)

    @cached_property
    def guide_places(self) -> torch.Tensor:
        """`guides`, likewise."""
        return on_device(self.guides, self.device)


class Batch:
    """Follows the batch of a worker, and keeps what HF's processors need of its requests.

    A request keeps its state while it waits for a place in the batch: under async scheduling its
    last tokens are on the device only, and could not be read again.

    Args:
        num_slots: rows of the tables at first; they grow when more requests are alive.
        vocab_size: width of the logits.
        max_len: the longest sequence.
        model_config: Transformers' configuration of the model.
        device: where the logits are.
        model_dtype: in which the model computes them.
    """

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        max_len: int,
        model_config: PretrainedConfig,
        device: torch.device,
        model_dtype: torch.dtype = torch.float32,
    ) -> None:
        self._tables = Tables(num_slots, vocab_size, max_len, device, model_dtype)
        self._vocab_size = vocab_size
        self._model_config = model_config
        self._free_slots = list(range(num_slots))
        self._states: dict[str, RequestState] = {}
        self._pipelines: WeakValueDictionary[str, Pipeline] = WeakValueDictionary()
        self._draw_source = DrawSource(vocab_size, device)
        self._rows: list[RequestState | None] = []
        self._req_ids: list[str] = []
        self.groups: list[Group] = []

    def __len__(self) -> int:
        return len(self._states)

    def update(self, requests: Sequence[CachedRequestState], alive: Collection[str]) -> None:
        """Read the tokens of requests that are new, forget those that ended.

        Args:
            requests: the batch's requests in the order of the logits' rows.
            alive: ids of all requests that have not ended, in the batch or not.
        """
        for req_id in [req_id for req_id in self._states if req_id not in alive]:
            self._free_slots.append(self._states.pop(req_id).slot)
        rows = [self._state_of(request) for request in requests]
        req_ids = [request.req_id for request in requests]
        # Rows that guide and those of plain requests have no state: only their ids tell them apart.
        if rows != self._rows or req_ids != self._req_ids:
            self._rows, self._req_ids = rows, req_ids
            self.groups = _group(req_ids, rows, self._tables.device)

    def rows_of(self, group: Group, discarded: np.ndarray) -> Rows:
        """Return the rows of a group that has a pipeline.

        Args:
            group: one of `groups`.
            discarded: bool [num_requests], True where the token will be thrown away because the
                prompt is not complete yet.
        """
        states = [state for i in group.indices if (state := self._rows[i]) is not None]
        return Rows(states, discarded[group.indices].tolist(), self._tables)

    def append(self, token_ids: torch.Tensor, discarded: np.ndarray) -> None:
        """Add the tokens of this step to the requests that keep them.

        Args:
            token_ids: int32 or int64 [num_requests], rows as in `update`.
            discarded: as in `rows_of`.
        """
        kept = [
            (i, state)
            for i, state in enumerate(self._rows)
            if state is not None and not discarded[i]
        ]
        if not kept:
            return
        for _, state in kept:
            state.num_outputs += 1
        if len(kept) < len(token_ids):
            token_ids = token_ids[self._tables.indices([i for i, _ in kept])]
        self._tables.append([state for _, state in kept], token_ids)

    def ended(self, token_ids: np.ndarray) -> np.ndarray:
        """Return bool [num_requests]: whether HF's lengths or EOS ids end a request.

        Args:
            token_ids: int [num_requests], the last ones.
        """
        ended = np.zeros(len(token_ids), dtype=bool)
        for i, state in enumerate(self._rows):
            if state is not None:
                request = state.request
                is_eos = int(token_ids[i]) in request.eos_token_ids
                ended[i] = is_eos or state.num_tokens >= request.max_length
        return ended

    def _state_of(self, request: CachedRequestState) -> RequestState | None:
        old = self._states.get(request.req_id)
        if old is not None and old.continues(request):
            return old
        if HFRequest.is_plain(request.sampling_params):
            return None
        hf_request = HFRequest.of(request.sampling_params)
        if hf_request.is_guided and split_row_id(request.req_id)[1] == GUIDE:
            return None
        state = self._new_state(request, hf_request, old)
        self._tables.write(state)
        self._states[request.req_id] = state
        return state

    def _new_state(
        self, request: CachedRequestState, hf_request: HFRequest, old: RequestState | None
    ) -> RequestState:
        known_prompt, outputs = _known_prompt(request), request.output_token_ids
        if hf_request.num_beams > 1:  # what a beam has generated comes as part of its prompt
            outputs = known_prompt[hf_request.prompt_len :]
            known_prompt = known_prompt[: hf_request.prompt_len]
        num_outputs = len(outputs)
        if old is not None and old.num_outputs == num_outputs:
            pipeline, draws = old.pipeline, old.draws
        else:
            pipeline = self._pipeline(hf_request, split_row_id(request.req_id)[0], num_outputs)
            draws = self._draws(hf_request, num_outputs) if pipeline.do_sample else None
        return RequestState(
            request=hf_request,
            pipeline=pipeline,
            slot=self._take_slot() if old is None else old.slot,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=outputs,
            known_prompt=[hf_request.pad_token_id] * hf_request.left_padding + known_prompt,
            num_outputs=num_outputs,
            draws=draws,
        )

    def _draws(self, request: HFRequest, num_drawn: int) -> Draws | None:
        if request.num_beams > 1:
            return None
        return self._draw_source.draws(request.seed, request.num_rows, request.row, num_drawn)

    def _pipeline(self, request: HFRequest, req_id: str, num_outputs: int) -> Pipeline:
        """Return the pipeline of a request, new or shared: a private one with its beams only."""
        key = Pipeline.key(request)
        private = key is None
        key = key or req_id
        pipeline = self._pipelines.get(key)
        if pipeline is None or (private and num_outputs == 0):
            pipeline = Pipeline(request, self._model_config, self._tables.device)
            self._pipelines[key] = pipeline
        return pipeline

    def _take_slot(self) -> int:
        if not self._free_slots:
            size = len(self._tables.seen)
            self._tables.grow(2 * size)
            self._free_slots = list(range(size, 2 * size))
        return self._free_slots.pop()


def _group(
    req_ids: Sequence[str], rows: Sequence[RequestState | None], device: torch.device
) -> list[Group]:
    groups: dict[Pipeline | None, list[int]] = {}
    searches: dict[str, list[tuple[int, int]]] = {}
    for i, (req_id, state) in enumerate(zip(req_ids, rows, strict=True)):
        if state is not None and state.request.num_beams > 1:
            search, beam = split_row_id(req_id)
            searches.setdefault(search, []).append((beam, i))
        else:
            groups.setdefault(state.pipeline if state else None, []).append(i)
    place = {req_id: i for i, req_id in enumerate(req_ids)}
    grouped = [
        Group(pipeline, indices, device, guides=_guides(req_ids, rows, indices, place))
        for pipeline, indices in groups.items()
    ]
    for search, beams in searches.items():
        indices = [i for _, i in sorted(beams)]
        state = rows[indices[0]]
        assert state is not None
        grouped.append(Group(state.pipeline, indices, device, search))
    return grouped


def _guides(
    req_ids: Sequence[str],
    rows: Sequence[RequestState | None],
    indices: Sequence[int],
    place: dict[str, int],
) -> list[int]:
    """Return the places of the rows that guide those at `indices`; a prompt not yet complete is
    guided by itself, since its token is thrown away.
    """
    first = rows[indices[0]]
    if first is None or not first.request.is_guided:
        return []
    return [place.get(row_id(req_ids[i], GUIDE), i) for i in indices]


def _known_prompt(request: CachedRequestState) -> list[int]:
    """Return the prompt's token ids; positions given as embeddings have none, as in HF."""
    if request.prompt_token_ids is None:
        return []
    if request.prompt_is_token_ids is None:
        return request.prompt_token_ids
    positions = zip(request.prompt_token_ids, request.prompt_is_token_ids, strict=True)
    return [token for token, is_token in positions if is_token]
