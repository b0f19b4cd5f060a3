"""Runs a Transformers model inside vLLM's engine with the bits that `generate()` gives it.

The model is Hugging Face's own: its modules, its weights, its attention. The engine brings
scheduling, paging, sampling and serving. What makes bits depend on a batch are shapes: a matrix
product of many rows rounds differently from one of a single row. So each request is computed at
the shapes that it has alone in `generate()`: its prompt whole, and then token by token.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from vllm.forward_context import get_forward_context
from vllm.hf_compat.request import HFRequest
from vllm.hf_compat.row_ids import GUIDE, split_row_id
from vllm.hf_compat.sampler import runner_of
from vllm.hf_numerics.grouped_decode import GroupedDecode, can_group
from vllm.hf_numerics.kv_pages import LayerPages, StepMetadata
from vllm.hf_numerics.self_check import equal_group_sizes
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)

_PREFIX = "hf_exact.layers"


class ExactModel(nn.Module):
    """A Transformers model as vLLM's model runner calls one.

    What it returns as hidden states are row numbers of the logits that it keeps for the step.

    Args:
        model: of Transformers, as `generate()` would run it.
        vllm_config: of the engine.
    """

    def __init__(self, model: PreTrainedModel, vllm_config: VllmConfig) -> None:
        super().__init__()
        self.model = model
        self._vllm_config = vllm_config
        self._takes_positions = "position_ids" in _parameters(model)
        self._keeps_last = "logits_to_keep" in _parameters(model)
        self._layers = [
            LayerPages(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)
            for keys, values in _probe(model)
        ]
        context = vllm_config.compilation_config.static_forward_context
        for i, layer in enumerate(self._layers):
            context[f"{_PREFIX}.{i}"] = layer
        self._logits: list[torch.Tensor] = []
        self._grouped: GroupedDecode | None = None
        self._group_sizes: list[int] = []
        self._try_groups()

    def _try_groups(self) -> None:
        """Find out how many requests can be computed together."""
        if can_group(self.model):
            self._grouped = GroupedDecode(self.model, self._layers)
            self._group_sizes = equal_group_sizes(
                self._grouped,
                self.forward_alone,
                self._layers,
                self._vllm_config.model_config.get_vocab_size(),
                self.model.device,
            )
        if self._group_sizes:
            logger.info('hf_compat="exact": up to %d requests together.', self._group_sizes[0])
        else:
            logger.warning(
                'hf_compat="exact": %s is computed one request at a time on this machine.',
                type(self.model).__name__,
            )

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
        """Compute a step.

        Args:
            input_ids: int [num_tokens], of all requests.
            positions: not looked at; they follow from the requests.
            intermediate_tensors: None.
            inputs_embeds: None.

        Returns:
            float32 [num_tokens, 1]: at the last token of each request, the row of its logits.
        """
        rows = torch.zeros(len(input_ids), 1, device=input_ids.device)
        metadata = get_forward_context().attn_metadata
        if not metadata:  # vLLM measures memory
            return rows
        step: StepMetadata = metadata[f"{_PREFIX}.0"]
        self._logits = []
        ends = [stop - 1 for stop in step.starts[1:]]
        lengths = [stop - start for start, stop in zip(step.starts, step.starts[1:], strict=False)]
        decoding = [
            i for i, num_new in enumerate(lengths) if num_new == 1 and step.seq_lens[i] > 1
        ]
        for group in self._groups(decoding):
            if len(group) > 1:
                self._keep(rows, [ends[i] for i in group], self._advance_group(group, step))
                decoding = decoding[len(group) :]
        for i, num_new in enumerate(lengths):
            if num_new and (num_new > 1 or step.seq_lens[i] == 1 or i in decoding):
                logits = self._advance(i, step.seq_lens[i], num_new, step)
                self._keep(rows, [ends[i]], logits)
        return rows

    def _keep(self, rows: torch.Tensor, places: list[int], logits: torch.Tensor) -> None:
        """Keep logits [num_requests, vocab_size] of the tokens at `places`."""
        for place, row in zip(places, logits.split(1), strict=True):
            rows[place] = len(self._logits)
            self._logits.append(row)

    def _groups(self, requests: list[int]) -> Iterator[list[int]]:
        """Split requests into groups of the proven sizes; the rest is alone."""
        first = 0
        for size in [*self._group_sizes, 1]:
            while len(requests) - first >= size:
                yield requests[first : first + size]
                first += size

    def _advance_group(self, group: list[int], step: StepMetadata) -> torch.Tensor:
        """Compute the newest token of each request of a group; return their logits."""
        assert self._grouped is not None
        batch = runner_of(self._vllm_config).input_batch
        positions = [step.seq_lens[i] - 1 for i in group]
        newest = torch.from_numpy(batch.token_ids_cpu[group, positions].astype("int64"))
        return self._grouped(newest.to(step.block_table.device), step.block_table[group], positions)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits of some tokens, [num_tokens, vocab_size] (``VllmModel``)."""
        if not self._logits:
            shape = len(hidden_states), self._vllm_config.model_config.get_vocab_size()
            return hidden_states.new_zeros(shape)
        return torch.cat([self._logits[row] for row in hidden_states[:, 0].long().tolist()])

    def _advance(self, i: int, seq_len: int, num_new: int, step: StepMetadata) -> torch.Tensor:
        """Compute the tokens of one request; return its logits [1, vocab_size]."""
        runner = runner_of(self._vllm_config)
        batch = runner.input_batch
        token_ids = torch.from_numpy(batch.token_ids_cpu[i, :seq_len].astype("int64"))
        token_ids = token_ids[None].to(step.block_table.device)
        blocks = step.block_table[i]
        known = seq_len - num_new
        if known:
            stops = [seq_len] if num_new == 1 else list(range(known + 1, seq_len + 1))
        else:  # after a preemption, what had been generated comes token by token, as before
            prompt = min(_prompt_len(runner.requests[batch.req_ids[i]]), seq_len)
            stops = list(range(prompt, seq_len + 1))
        for stop in stops:
            logits = self.forward_alone(token_ids[:, :stop], known, blocks)
            known = stop
        return logits

    def forward_alone(self, input_ids: torch.Tensor, known: int, blocks: torch.Tensor) -> torch.Tensor:
        """Run the model as ``GenerationMixin._sample`` does.

        Args:
            input_ids: int64 [1, num_tokens], the whole sequence.
            known: how many of them are in the cache.
            blocks: int [num_blocks] of the request.
        """
        seq_len = input_ids.shape[1]
        cache = self._cache(known, blocks)
        arguments: dict[str, Any] = {"attention_mask": torch.ones_like(input_ids)}
        if self._takes_positions:
            arguments["position_ids"] = torch.arange(seq_len, device=input_ids.device)[None]
        if self._keeps_last:
            arguments["logits_to_keep"] = 1
        inputs = self.model.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=seq_len - known,
            past_key_values=cache,
            is_first_iteration=not known,
            use_cache=True,
            **arguments,
        )
        output = self.model(**inputs, return_dict=True)
        self._store(output.past_key_values, known, seq_len, blocks)
        return output.logits[:, -1]

    def _cache(self, known: int, blocks: torch.Tensor) -> DynamicCache:
        """Return HF's cache as it would be after `known` tokens."""
        cache = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        if not known:
            return cache
        for pages, layer in zip(self._layers, cache.layers, strict=True):
            start = 0
            if isinstance(layer, DynamicSlidingWindowLayer):
                start = max(0, known - layer.sliding_window + 1)
                layer.cumulative_length = known
            keys, values = pages.read(blocks, start, known)
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        return cache

    def _store(self, cache: Any, known: int, seq_len: int, blocks: torch.Tensor) -> None:
        """Write what is new in HF's cache, or all of it if the model has begun a new one."""
        for pages, layer in zip(self._layers, cache.layers, strict=True):
            num_new = min(seq_len - known, layer.keys.shape[2])
            pages.write(
                blocks, seq_len, layer.keys[:, :, -num_new:], layer.values[:, :, -num_new:]
            )


def _parameters(model: PreTrainedModel) -> Container[str]:
    return inspect.signature(model.forward).parameters


def _prompt_len(request: Any) -> int:
    """Return how many tokens `generate()` computes at once."""
    hf_request = HFRequest.of(request.sampling_params)
    if hf_request.is_guided and split_row_id(request.req_id)[1] == GUIDE:
        return len(hf_request.negative_prompt_ids or [0])
    return int(request.num_prompt_tokens)


@torch.inference_mode()
def _probe(model: PreTrainedModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return keys and values of one token, layer by layer.

    Raises:
        ValueError: a layer keeps anything else.
    """
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    cache = model(input_ids=token, past_key_values=cache, use_cache=True).past_key_values
    for layer in cache.layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ValueError(
                f'hf_compat="exact" does not support {type(model).__name__}, whose cache has a '
                f"{type(layer).__name__}: use hf_compat=True."
            )
    return [(layer.keys, layer.values) for layer in cache.layers]
