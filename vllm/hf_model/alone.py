"""One request of a Transformers model, as `generate()` computes it, with its cache in pages."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicSlidingWindowLayer

from vllm.hf_layers.engine.exact_models import refusal_of, why_no_pages
from vllm.hf_model.kv_pages import LayerPages


class Alone:
    """Computes one request at a time.

    Args:
        model: of Transformers.
        layers: the pages of each layer.
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[LayerPages]) -> None:
        self._model = model
        self._layers = layers
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._keeps_last = keeps_last(model)

    def __call__(
        self, input_ids: torch.Tensor, known: int, blocks: torch.Tensor, dropped: int = 0
    ) -> tuple[torch.Tensor, int]:
        """Run the model as ``GenerationMixin._sample`` does.

        Args:
            input_ids: int64 [1, num_tokens], the whole sequence.
            known: how many of them the model has seen.
            blocks: int [num_blocks], of the request.
            dropped: how many of these the model has dropped from its cache since.

        Returns:
            The last logits, [1, vocab_size], in the model's dtype, and how many tokens are dropped
            now: Phi-3 begins another cache where a text outgrows the context it was first trained
            with.
        """
        seq_len = input_ids.shape[1]
        arguments: dict[str, Any] = {"attention_mask": torch.ones_like(input_ids)}
        if self._takes_positions:
            arguments["position_ids"] = torch.arange(seq_len, device=input_ids.device)[None]
        if self._keeps_last:
            arguments["logits_to_keep"] = 1
        cache = self._cache(known, blocks, dropped)
        inputs = self._model.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=seq_len - known,
            past_key_values=cache,
            is_first_iteration=not known,
            use_cache=True,
            **arguments,
        )
        output = self._model(**inputs, return_dict=True)
        if output.past_key_values is not cache:
            dropped = seq_len - output.past_key_values.get_seq_length()
            known = dropped
        self._store(output.past_key_values, known, seq_len, blocks)
        return output.logits[:, -1], dropped

    def all_logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of all tokens, [num_tokens, vocab_size], as ``model(input_ids)``."""
        return self._model(input_ids=input_ids, use_cache=False, return_dict=True).logits[0]

    def _cache(self, known: int, blocks: torch.Tensor, dropped: int) -> DynamicCache:
        """Return HF's cache as it is after `known` tokens, of which some were dropped."""
        cache = _empty_cache(self._model)
        if not known:
            return cache
        for pages, layer in zip(self._layers, cache.layers, strict=True):
            start = dropped
            if isinstance(layer, DynamicSlidingWindowLayer):
                start = max(start, known - layer.sliding_window + 1)
                layer.cumulative_length = known - dropped
            keys, values = pages.read(blocks, start, known)
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        return cache

    def _store(self, cache: Any, known: int, seq_len: int, blocks: torch.Tensor) -> None:
        """Write what HF's cache has of the tokens from `known` to `seq_len`."""
        slots = self._layers[0].slots_of(blocks[None], [(known, seq_len)])
        for pages, layer in zip(self._layers, cache.layers, strict=True):
            num_new = min(len(slots), layer.keys.shape[2])
            pages.write(
                slots[len(slots) - num_new :],
                layer.keys[0, :, -num_new:].transpose(0, 1),
                layer.values[0, :, -num_new:].transpose(0, 1),
            )


def keeps_last(model: PreTrainedModel) -> bool:
    """Whether a model can be asked for the logits of some tokens alone."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def sliding_windows(model: PreTrainedModel, num_layers: int) -> list[int | None]:
    """Return the window of each layer of a model's cache, None where it keeps all."""
    layers = _empty_cache(model).layers
    if not layers:  # they come with the first token
        return [None] * num_layers
    return [
        layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
        for layer in layers
    ]


@torch.inference_mode()
def make_pages(model: PreTrainedModel) -> list[LayerPages]:
    """Return pages for each layer of a model, without memory yet.

    Raises:
        ValueError: a layer keeps anything but keys and values.
    """
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    output = model(input_ids=token, past_key_values=_empty_cache(model), use_cache=True)
    cache: Any = getattr(output, "past_key_values", None)
    if reason := why_no_pages(cache):
        raise refusal_of(type(model).__name__, reason)
    return [
        LayerPages(one.keys.shape[1], one.keys.shape[3], one.values.shape[3], one.keys.dtype)
        for one in cache.layers
    ]


def _empty_cache(model: PreTrainedModel) -> DynamicCache:
    """Return the cache that ``GenerationMixin._prepare_cache_for_generation`` makes."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))
