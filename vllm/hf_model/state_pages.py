"""The states of a Transformers model in the blocks of vLLM's KV cache: one block for a request.

A layer that does not attend keeps a state of one size, whatever the length of a text: the last
inputs of a convolution, the sum of a recurrence. vLLM gives each request a block for it, and copies
the block where beams part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from vllm.hf_model.kv_pages import LayerPages, PagesBackend
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.utils.math_utils import round_up
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import AttentionBackend

_NAMES = ("conv_states", "recurrent_states")  # of ``LinearAttentionCacheLayerMixin``
_ALIGNMENT = 64  # bytes, as of PyTorch's own tensors: bits of a sum may depend on it


@dataclass(frozen=True)
class State:
    """A state of a layer.

    Attributes:
        name: of the layer's attribute, a dictionary.
        number: its key.
        shape: of the tensor, for one request.
        stride: likewise.
        dtype: likewise.
    """

    name: str
    number: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """How much memory it takes."""
        return round_up(prod(self.shape) * self.dtype.itemsize, _ALIGNMENT)


def states_of(layer: Any) -> list[State]:
    """Return the states that a layer of a Transformers cache has, after a prompt."""
    found = []
    for name in _NAMES:
        for number, one in getattr(layer, name, {}).items():
            if one is not None:
                found.append(State(name, number, one.shape, one.stride(), one.dtype))
    return found


@dataclass(frozen=True)
class Place:
    """Where a state is.

    Attributes:
        pages: in which it is.
        index: of these among all pages of states.
        start: its first byte.
    """

    pages: StatePages
    index: int
    start: int

    def view(self, state: State, blocks: Sequence[int]) -> torch.Tensor:
        """Return a state of a request, as a view of its block.

        Args:
            state: that is there.
            blocks: the block of the request in each of the pages of states.
        """
        page = self.pages.kv_cache[blocks[self.index]].flatten().view(torch.uint8)
        own = page[self.start : self.start + state.num_bytes].view(state.dtype)
        return own.as_strided(state.shape, state.stride, own.storage_offset())


class StatePages(AttentionLayerBase):
    """The part of the KV cache that holds some states of a model.

    Args:
        like: pages of keys and values, of whose size a multiple is taken; None if there are none.
    """

    def __init__(self, like: LayerPages | None) -> None:
        self._like = like
        self.states: list[tuple[int, State]] = []  # with the number of the layer
        self.kv_cache = torch.empty(0)  # until vLLM binds it

    @classmethod
    def for_states(
        cls, states: Sequence[Sequence[State]], count: int, pages: Sequence[LayerPages]
    ) -> list[StatePages]:
        """Return pages that hold the states of all layers, about as much each.

        Args:
            states: of each layer.
            count: of pages.
            pages: of keys and values.
        """
        if not any(states):
            return []
        made = [cls(pages[0] if pages else None) for _ in range(count)]
        placed = [(i, state) for i, of_layer in enumerate(states) for state in of_layer]
        for one in sorted(placed, key=lambda place: -place[1].num_bytes):
            min(made, key=lambda own: own.num_bytes).states.append(one)
        return made

    @staticmethod
    def places(pages: Sequence[StatePages]) -> Mapping[tuple[int, State], Place]:
        """Return where the states of layers are."""
        found = {}
        for index, own in enumerate(pages):
            start = 0
            for layer, state in own.states:
                found[layer, state] = Place(own, index, start)
                start += state.num_bytes
        return found

    @property
    def num_bytes(self) -> int:
        """How much memory the states of a request take."""
        return sum(state.num_bytes for _, state in self.states)

    def new_memory(
        self, num_requests: int, num_blocks: int, block_size: int, device: torch.device
    ) -> torch.Tensor:
        """Return memory in the place of vLLM's, with a block for each of some requests."""
        return torch.zeros(num_requests, self.num_bytes, dtype=torch.uint8, device=device)

    def get_attn_backend(self) -> type[AttentionBackend]:
        """As ``AttentionLayerBase.get_attn_backend``."""
        return PagesBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """As ``AttentionLayerBase.get_kv_cache_spec``; a block is of one request.

        vLLM enlarges the blocks of keys and values to this size.
        """
        padded = self.num_bytes
        if self._like is not None:
            padded = round_up(padded, self._like.get_kv_cache_spec(vllm_config).page_size_bytes)
        return MambaSpec(
            block_size=vllm_config.model_config.max_model_len,
            shapes=((padded,),),
            dtypes=(torch.uint8,),
        )
