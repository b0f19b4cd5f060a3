"""Runs a Transformers model inside vLLM's engine with the bits that `generate()` gives it.

The model is Hugging Face's own: its modules, its weights, its attention. The engine brings
scheduling, paging, sampling and serving. What makes bits depend on a batch are shapes: a matrix
product of many rows rounds differently from one of a single row. So each request is computed at
the shapes that it has alone in `generate()`: its prompt whole, and then token by token, together
with others only where that leaves every bit as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel

from vllm.fork.models.runners import runner_of
from vllm.forward_context import get_forward_context
from vllm.hf_compat.rows.row_ids import prompt_length
from vllm.hf_layers.report.report import ParityRow
from vllm.hf_model.adapters import PeftAdapters
from vllm.hf_model.alone import Alone
from vllm.hf_model.generate_call import GenerateCall
from vllm.hf_model.group import Group
from vllm.hf_model.grouped_decode import GroupedDecode, why_no_group
from vllm.hf_model.grouped_prompts import GroupedPrompts, can_group_prompts
from vllm.hf_model.kv_pages import StepMetadata
from vllm.hf_model.model_cache import Blocks, ModelCache
from vllm.hf_model.one_operator import OneOperator, is_one_operator
from vllm.hf_model.self_check import equal_group_sizes, why_no_prompts
from vllm.hf_model.stand_ins import stand_in
from vllm.hf_model.state_layers import state_layers
from vllm.logger import init_logger
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)

NO_ADAPTER = 0
_DROPPED = "hf_exact_dropped"  # of the runner's requests: tokens that the model's cache has lost


class ExactModel(nn.Module):
    """A Transformers model as vLLM's model runner calls one.

    What it returns as hidden states are places in the list of logits that it keeps for the step.

    Args:
        model: of Transformers, as `generate()` would run it.
        vllm_config: of the engine.

    Attributes:
        group_sizes: for each adapter, how many of its requests can be computed together.
        groups_prompts: for each adapter, whether prompts can.
        adapters: None if LoRA is not enabled.
        parity_row: of the report on the layers of an engine.
    """

    def __init__(self, model: PreTrainedModel, vllm_config: VllmConfig) -> None:
        super().__init__()
        self.model = model
        self.parity_row = ParityRow(type(model).__name__, 1, True, "Transformers' own model")
        self._vllm_config = vllm_config
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._call = GenerateCall(model)
        self.cache = ModelCache(self._call)
        # vLLM knows what has pages by such names.
        self._names = [f"hf_exact.layers.{i}" for i in range(len(self.cache.parts))]
        context = vllm_config.compilation_config.static_forward_context
        context.update(zip(self._names, self.cache.parts, strict=True))
        self.alone = Alone(self._call, self.cache)
        self._with_states = state_layers(self._call) if self.cache.states else set()
        self._group = Group()
        self.grouped: GroupedDecode | None = None
        self.prompts: GroupedPrompts | None = None
        self.group_sizes: dict[int, list[int]] = {}
        self.groups_prompts: dict[int, bool] = {}
        self._logits: list[torch.Tensor] = []
        self.adapters: PeftAdapters | None = None
        if (config := vllm_config.lora_config) is not None:
            self.adapters = PeftAdapters(model, config, on_load=self._try_groups)
        self._make_groups(model)
        self._try_groups(NO_ADAPTER)

    def _make_groups(self, model: PreTrainedModel) -> None:
        """Make what computes several requests, before anything stands in for a layer."""
        self._why_no_group = why_no_group(model, self.cache)
        if self._why_no_group is not None:
            return
        operator = None
        if is_one_operator(model, model.config._attn_implementation):
            operator = OneOperator(model, self.cache.pages, self._group)
        self.grouped = GroupedDecode(self._call, self.cache, self._group, operator)
        if can_group_prompts(model, self.cache):
            self.prompts = GroupedPrompts(model, self.cache, self._group, operator)

    def _try_groups(self, adapter_id: int) -> None:
        """Find out how many requests with an adapter, which is active, can be computed together."""
        sizes: list[int] = []
        reason = self._why_no_group
        if self.grouped is not None:
            stand_in(self.model, self._group, self._with_states)
            sizes, reason = equal_group_sizes(
                self.grouped, self.alone, self.cache, self._vocab_size, self.model.device
            )
        self.group_sizes[adapter_id] = sizes
        name = type(self.model).__name__ + (f" with adapter {adapter_id}" if adapter_id else "")
        self.groups_prompts[adapter_id] = self.prompts is not None and self._may_group(name)
        if sizes:
            most = sizes[0]
            logger.info(
                'hf_compat="exact": up to %d requests of %s are computed together.', most, name
            )
        else:
            logger.warning(
                'hf_compat="exact": %s is computed one request at a time: %s.', name, reason
            )

    def _may_group(self, name: str) -> bool:
        """Whether prompts, with the adapter that is active, can be computed together."""
        assert self.prompts is not None
        reason = why_no_prompts(self.model, self.prompts, self.alone, self.cache, self._vocab_size)
        if reason is not None:
            logger.info('hf_compat="exact": prompts of %s are computed alone: %s.', name, reason)
        return reason is None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Replace weights, all or some, by the names of Transformers' model.

        Args:
            weights: names and tensors.

        Returns:
            the names.

        Raises:
            KeyError: a name is not the model's.
            AssertionError: a shape is not the model's.
        """
        if self.adapters is not None:
            self.adapters.activate(NO_ADAPTER)  # with an adapter's layers, weights have other names
        own = self.model.state_dict(keep_vars=True)
        loaded = set()
        for name, tensor in weights:
            getattr(own[name], "weight_loader", default_weight_loader)(own[name], tensor)
            loaded.add(f"model.{name}")
        return loaded

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings [num_tokens, hidden_size] (``VllmModel.embed_input_ids``)."""
        return self.model.get_input_embeddings()(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute a step (``VllmModel.forward``).

        Args:
            input_ids: int [num_tokens], of all requests.
            positions: not looked at; they follow from the requests.
            intermediate_tensors: None.
            inputs_embeds: None.

        Returns:
            float32 [num_tokens, 1], the place of each token's logits, if it has any.
        """
        places = torch.zeros(len(input_ids), 1, device=input_ids.device)
        metadata = get_forward_context().attn_metadata
        self._logits = []
        if not metadata:  # vLLM measures memory
            return places
        step: StepMetadata = metadata[self._names[0]]
        of_states = (metadata[name] for name in self._names[len(self.cache.pages) :])
        tables = [own.block_table[: len(step.seq_lens), 0].tolist() for own in of_states]
        step.states = [*zip(*tables, strict=True)]
        num_new = [stop - start for start, stop in zip(step.starts, step.starts[1:], strict=False)]
        adapters = self._adapters_of(len(num_new))
        for adapter_id in sorted(set(adapters)):
            own = {i: num for i, num in enumerate(num_new) if num and adapters[i] == adapter_id}
            if self.adapters is not None:
                self.adapters.activate(adapter_id)
            self._advance_all(own, adapter_id, step, input_ids, places)
        return places

    def _adapters_of(self, num_requests: int) -> list[int]:
        """Return the adapter of each request of the batch."""
        if self.adapters is None:
            return [NO_ADAPTER] * num_requests
        batch = runner_of(self._vllm_config).input_batch
        return batch.request_lora_mapping[:num_requests].tolist()

    def _advance_all(
        self,
        num_new: dict[int, int],
        adapter_id: int,
        step: StepMetadata,
        input_ids: torch.Tensor,
        places: torch.Tensor,
    ) -> None:
        """Compute requests, each with a number of new tokens, that share an adapter."""
        one_each = [i for i, num in num_new.items() if num == 1 and step.seq_lens[i] > 1]
        for group in _groups(one_each, self.group_sizes[adapter_id]):
            tokens = [step.starts[i] for i in group]
            self._keep(places, tokens, self._advance_group(group, tokens, step, input_ids))
            num_new = _without(num_new, group)
        if num_new and self.prompts is not None and self.groups_prompts[adapter_id]:
            whole = {i: num for i, num in num_new.items() if self._is_whole_prompt(i, num, step)}
            for group in self.prompts.split(whole):
                last = [step.starts[i + 1] - 1 for i in group]
                self._keep(places, last, self._begin_group(group, step, input_ids))
                num_new = _without(num_new, group)
        for i, num in num_new.items():
            self._advance(i, num, step, places)

    def _is_whole_prompt(self, i: int, num_new: int, step: StepMetadata) -> bool:
        """Whether the new tokens of a request are its prompt, of which the last logits are due."""
        if num_new != step.seq_lens[i]:
            return False
        runner = runner_of(self._vllm_config)
        request = runner.requests[runner.input_batch.req_ids[i]]
        return (
            num_new == prompt_length(request) and request.req_id not in runner.num_prompt_logprobs
        )

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits of some tokens (``VllmModel.compute_logits``).

        Args:
            hidden_states: float32 [num_tokens, 1], rows of what `forward` returned.

        Returns:
            [num_tokens, vocab_size], in the model's dtype.
        """
        if not self._logits:
            return hidden_states.new_zeros(len(hidden_states), self._vocab_size)
        kept = self._logits[0] if len(self._logits) == 1 else torch.cat(self._logits)
        places = hidden_states[:, 0].long()
        # Most steps ask for all logits, in the order in which they were computed.
        if len(places) == len(kept) and torch.equal(places, torch.arange(len(places)).to(places)):
            return kept
        return kept[places]

    def _keep(self, places: torch.Tensor, tokens: list[int], logits: torch.Tensor) -> None:
        """Keep logits [len(tokens), vocab_size], and write down where."""
        first = sum(map(len, self._logits))
        own = torch.arange(first, first + len(tokens), dtype=places.dtype, device=places.device)
        places[_as_rows(tokens), 0] = own
        self._logits.append(logits)

    def _advance_group(
        self, group: list[int], tokens: list[int], step: StepMetadata, input_ids: torch.Tensor
    ) -> torch.Tensor:
        """Compute the newest token of each request of a group; return their logits."""
        assert self.grouped is not None
        positions = [step.seq_lens[i] - 1 for i in group]
        rows = _as_rows(tokens)
        blocks = step.block_table[_as_rows(group)]
        states = [step.states[i] for i in group] if step.states else ()
        return self.grouped(input_ids[rows].long(), blocks, positions, step.slots[rows], states)

    def _begin_group(
        self, group: list[int], step: StepMetadata, input_ids: torch.Tensor
    ) -> torch.Tensor:
        """Compute the prompts of a group of requests; return their last logits."""
        assert self.prompts is not None
        token_ids = input_ids.long()
        tokens = [slice(step.starts[i], step.starts[i + 1]) for i in group]
        slots = torch.cat([step.slots[own] for own in tokens])
        blocks = step.block_table[_as_rows(group)]
        return self.prompts([token_ids[own] for own in tokens], blocks, slots)

    def _advance(self, i: int, num_new: int, step: StepMetadata, places: torch.Tensor) -> None:
        """Compute the tokens of one request, and keep its logits."""
        runner = runner_of(self._vllm_config)
        seq_len, start = step.seq_lens[i], step.starts[i]
        blocks = Blocks(step.block_table[i], step.states[i] if step.states else ())
        row = runner.input_batch.token_ids_cpu[i : i + 1, :seq_len]
        token_ids = torch.from_numpy(row.astype("int64")).to(blocks.tokens.device)
        request = runner.requests[runner.input_batch.req_ids[i]]
        known = seq_len - num_new
        if not known and request.req_id in runner.num_prompt_logprobs:
            self._keep(places, [*range(start, start + num_new)], self.alone.all_logits(token_ids))
        # After a preemption, what had been generated comes token by token, as it did before.
        first = known + 1 if known else min(prompt_length(request), seq_len)
        dropped = getattr(request, _DROPPED, 0) if known else 0
        for stop in range(first, seq_len + 1):
            logits, dropped = self.alone(token_ids[:, :stop], known, blocks, dropped)
            known = stop
        setattr(request, _DROPPED, dropped)
        self._keep(places, [start + num_new - 1], logits)


def _as_rows(indices: list[int]) -> list[int] | slice:
    """Return indices as a slice, where they follow each other: it is a view, and made faster."""
    first, count = indices[0], len(indices)
    return slice(first, first + count) if indices == [*range(first, first + count)] else indices


def _without(num_new: dict[int, int], group: list[int]) -> dict[int, int]:
    """Return the requests that are not in a group."""
    if len(group) == len(num_new):
        return {}
    members = {*group}
    return {i: num for i, num in num_new.items() if i not in members}


def _groups(requests: list[int], sizes: list[int]) -> list[list[int]]:
    """Split requests into groups of the proven sizes; some may be left over."""
    groups, first = [], 0
    for size in sizes:
        while len(requests) - first >= size:
            groups.append(requests[first : first + size])
            first += size
    return groups
