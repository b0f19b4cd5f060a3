"""Transformers' cache of one request, whose tensors are in the blocks of vLLM's KV cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import DynamicSlidingWindowLayer

from vllm.hf_layers.engine.exact_models import refusal_of, state_blocks, why_no_blocks
from vllm.hf_model.generate_call import GenerateCall
from vllm.hf_model.kv_pages import LayerPages
from vllm.hf_model.state_pages import Place, State, StatePages, states_of

_OF_TOKENS = ("keys", "values", "indexer_keys")
_LENGTH = "cumulative_length"  # of a sliding window's layer: tokens that it has seen


class Blocks(NamedTuple):
    """The blocks of a request.

    Attributes:
        tokens: int32 [num_blocks], of what is cached of each token.
        states: the block of each `StatePages`.
    """

    tokens: torch.Tensor
    states: Sequence[int] = ()


@dataclass(frozen=True)
class CachedLayer:
    """A layer of Transformers' cache, and where its tensors are.

    Attributes:
        template: the layer as it is after a prompt, of which nothing but tensors and lengths
            changes from then on.
        pages: of keys and values; None if it keeps none.
        states: of which each step writes another value.
    """

    template: Any
    pages: LayerPages | None
    states: dict[State, Place]

    @property
    def window(self) -> int | None:
        """How many tokens it sees, the newest included; None if it sees all."""
        is_sliding = isinstance(self.template, DynamicSlidingWindowLayer)
        return self.template.sliding_window if is_sliding else None

    def load(self, blocks: Blocks, dropped: int, known: int) -> Any:
        """Return the layer after `known` tokens, of which some were dropped; its states are written
        in place.
        """
        layer = self._copy()
        if self.pages is not None:
            start = dropped
            if self.window is not None:
                start = max(start, known - self.window + 1)
                layer.cumulative_length = known - dropped
            layer.keys, layer.values = self.pages.read(blocks.tokens, start, known)
            if self.pages.index_size:
                layer.indexer_keys = self.pages.read_index(blocks.tokens, start, known)
        self._put_states(layer, blocks.states)
        return layer

    def load_states(self, blocks: Sequence[int]) -> Any:
        """Return the layer with the states of a request, which are written in place, and no keys
        and values.
        """
        layer = self._copy()
        self._put_states(layer, blocks)
        return layer

    def store_states(self, layer: Any, blocks: Sequence[int]) -> None:
        """Write the states of a request, where they are not in place."""
        for state, place in self.states.items():
            own = getattr(layer, state.name)[state.number]
            kept = place.view(state, blocks)
            if own.data_ptr() != kept.data_ptr():
                kept.copy_(own)

    def _put_states(self, layer: Any, blocks: Sequence[int]) -> None:
        for state, place in self.states.items():
            getattr(layer, state.name)[state.number] = place.view(state, blocks)

    def _copy(self) -> Any:
        layer = copy.copy(self.template)
        for name, value in vars(layer).items():
            if isinstance(value, dict):  # by the number of a state
                setattr(layer, name, dict(value))
        return layer

    def store(self, layer: Any, slots: torch.Tensor, blocks: Blocks) -> None:
        """Write what a layer has of the newest tokens, and its states where they are not in place.

        Args:
            layer: as the model left it.
            slots: int64 [num_tokens] (`LayerPages.slots_of`).
            blocks: of the request.
        """
        if self.pages is not None:
            num_new = min(len(slots), layer.keys.shape[2])
            self.pages.write(
                slots[len(slots) - num_new :],
                layer.keys[0, :, -num_new:].transpose(0, 1),
                layer.values[0, :, -num_new:].transpose(0, 1),
                layer.indexer_keys[0, -num_new:] if self.pages.index_size else None,
            )
        self.store_states(layer, blocks.states)


class ModelCache:
    """What a Transformers model caches of a request.

    Args:
        call: of the model, which is tried.

    Attributes:
        layers: of Transformers' cache.
        pages: of those layers that keep something of each token; the others are left out.
        states: of what layers keep besides.

    Raises:
        ValueError: a layer keeps anything else.
    """

    def __init__(self, call: GenerateCall) -> None:
        name = type(call.model).__name__
        trial = _tried(call, 1)
        if reason := why_no_blocks(trial):
            raise refusal_of(name, reason)
        self._positions = _positions_of(trial, call.empty_cache(), name)
        found = [states_of(layer) for layer in trial.layers]
        if any(found) and (reason := _why_not_alike(call, trial.layers)):
            raise refusal_of(name, reason)
        pages = [_pages_of(layer) for layer in trial.layers]
        self.pages = [one for one in pages if one is not None]
        if any(found) and self.pages:
            forms = [one.form for one in self.pages]
            if len({form.dtype for form in forms}) > 1:
                raise refusal_of(name, "has states, and keys and values of several dtypes")
            for one in self.pages:
                one.make_room(max(forms, key=lambda form: form.num_bytes))
        num_blocks = state_blocks(sum(map(bool, found)), len(self.pages))
        num_pages = num_blocks * max(1, len(self.pages))
        self.states = StatePages.for_states(found, num_pages, self.pages)
        places = StatePages.places(self.states)
        self.layers = [
            CachedLayer(_without_tensors(layer), own, {one: places[i, one] for one in states})
            for i, (layer, own, states) in enumerate(zip(trial.layers, pages, found, strict=True))
        ]

    @property
    def parts(self) -> list[LayerPages | StatePages]:
        """All pages, each of which vLLM gives memory."""
        return [*self.pages, *self.states]

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer (`CachedLayer.window`)."""
        return [layer.window for layer in self.layers]

    def load(self, cache: Any, blocks: Blocks, dropped: int, known: int) -> None:
        """Fill an empty cache of HF's as it is after `known` tokens, of which some were dropped."""
        cache.layers = [layer.load(blocks, dropped, known) for layer in self.layers]
        if self._positions is not None:
            positions = torch.arange(known, device=self._positions.device)
            cache.position_ids = positions.expand(*self._positions.shape[:-1], -1)

    def slots_of(self, blocks: torch.Tensor, spans: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Return the places of tokens in all layers that keep any (`LayerPages.slots_of`)."""
        return self.pages[0].slots_of(blocks, spans) if self.pages else blocks.new_empty(0).long()

    def store(self, layers: Sequence[Any], blocks: Blocks, known: int, seq_len: int) -> None:
        """Write what the layers of HF's cache have of the tokens from `known` to `seq_len`."""
        slots = self.slots_of(blocks.tokens[None], [(known, seq_len)])
        for own, layer in zip(self.layers, layers, strict=True):
            own.store(layer, slots, blocks)


def _positions_of(trial: Any, empty: Any, name: str) -> torch.Tensor | None:
    """Return the positions of tokens that a cache keeps beside its layers, int64 [..., num_tokens].

    Returns:
        None if it keeps none.

    Raises:
        ValueError: it keeps anything else there.
    """
    for other in vars(trial).keys() - vars(empty).keys() - {"position_ids"}:
        raise refusal_of(name, f"keeps {other} beside the layers of its cache")
    return getattr(trial, "position_ids", None)


@torch.inference_mode()
def _tried(call: GenerateCall, num_prompt: int, num_steps: int = 0) -> Any:
    """Return the cache after a prompt of some tokens, and some more that come one by one."""
    cache: Any = call.empty_cache()
    known = 0
    for seq_len in range(num_prompt, num_prompt + num_steps + 1):
        token_ids = torch.zeros(1, seq_len, dtype=torch.int64, device=call.model.device)
        _, cache = call(token_ids, known, cache)
        known = seq_len
    return cache


def _why_not_alike(call: GenerateCall, layers: Sequence[Any]) -> str | None:
    """Return why layers with states are not made from a template, as "it ..."; None if they are."""
    for other in (_tried(call, 1, 1), _tried(call, 7)):
        for one, same in zip(layers, other.layers, strict=True):
            if states_of(one) != states_of(same) or _plain(one) != _plain(same):
                return f"keeps states of changing form in a {type(one).__name__}"
    return None


def _plain(layer: Any) -> dict[str, Any]:
    """Return what of a layer is neither a tensor nor a length."""
    kept = vars(_without_tensors(layer)).items()
    return {k: one for k, one in kept if k != _LENGTH and not isinstance(one, torch.Tensor)}


def _without_tensors(layer: Any) -> Any:
    """Return a layer without what `CachedLayer.load` puts in."""
    bare = copy.copy(layer)
    for name, value in vars(layer).items():
        if name in _OF_TOKENS:
            setattr(bare, name, None)
        elif isinstance(value, dict):
            kept = {k: None if isinstance(v, torch.Tensor) else v for k, v in value.items()}
            setattr(bare, name, kept)
    return bare


def _pages_of(layer: Any) -> LayerPages | None:
    """Return pages for a layer that has been tried; None if it keeps no keys."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None:
        return None
    index = getattr(layer, "indexer_keys", None)
    index_size = 0 if index is None else index.shape[-1]
    return LayerPages(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, index_size)
