"""The cache of Transformers as layers call it, for one new token of each of several requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from vllm.fork_kernels.torch_order.decoder_rows import RowsInPages
from vllm.hf_model.kv_pages import LayerPages
from vllm.hf_model.model_cache import CachedLayer


class PagesAreReadError(AttributeError):
    """A model computes with what is cached before it attends to it."""


class NoTensor:
    """Stands for keys and values on their way through a model, which may only hand them on."""

    def __getattr__(self, name: str) -> Any:
        """Refuse what only tensors have.

        Raises:
            PagesAreReadError: always.
        """
        raise PagesAreReadError(f"keys and values of a group are no tensor, with {name!r}")


@dataclass
class GroupPages(NoTensor):
    """Keys and values of several requests, which stay where they are until they are needed.

    Attributes:
        pages: of the layer.
        blocks: int32 [num_requests, max_blocks].
        starts: int64 [num_requests], the first token of each that is attended to.
        stops: int64 [num_requests], the token after the last one.
    """

    pages: LayerPages
    blocks: torch.Tensor
    starts: torch.Tensor
    stops: torch.Tensor

    def read(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of one request (`LayerPages.read`)."""
        key, value = self.pages.read(self.blocks[i], int(self.starts[i]), int(self.stops[i]))
        return key.contiguous(), value.contiguous()


Places = dict[int | None, RowsInPages]
"""Where the newest tokens of requests are, for each sliding window of a model, None without."""


def places_of(
    windows: Iterable[int | None],
    blocks: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> Places:
    """Return where the newest token of each request is, and what it sees.

    Args:
        windows: of the layers.
        blocks: int32 [num_requests, max_blocks].
        positions: int64 [num_requests].
        slots: int64 [num_requests] (`LayerPages.slots_of`).
    """
    stops = positions + 1
    starts = {
        window: torch.zeros_like(positions)
        if window is None
        else torch.clamp_min(stops - window, 0)
        for window in set(windows)
    }
    return {window: RowsInPages(slots, blocks, own, stops) for window, own in starts.items()}


class GroupCache(DynamicCache):
    """The cache of a group: what layers write goes to the pages at once. A layer that keeps states
    is called for each request with its own cache (`of_request`).

    Args:
        cached: the layers.
        places: of the new tokens.
        positions: of the new tokens.
        states: the blocks of each request's states, if the model has states.
    """

    def __init__(
        self,
        cached: Sequence[CachedLayer],
        places: Places,
        positions: Sequence[int],
        states: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__()
        self._cached, self._places, self._states = cached, places, states
        self._positions = positions
        if states:
            self.layers = [layer.template for layer in cached]
        self._of_requests: dict[int, GroupCache] = {}

    @property
    def num_requests(self) -> int:
        """How many there are."""
        return len(self._positions)

    def of_request(self, i: int) -> GroupCache:
        """Return the cache of one request, whose layers have its states."""
        if i not in self._of_requests:
            one = slice(i, i + 1)
            places = {
                window: RowsInPages(at.slots[one], at.blocks[one], at.starts[one], at.stops[one])
                for window, at in self._places.items()
            }
            own = GroupCache(self._cached, places, self._positions[one], self._states[one])
            own.layers = [layer.load_states(self._states[i]) for layer in self._cached]
            self._of_requests[i] = own
        return self._of_requests[i]

    def store_states(self) -> None:
        """Write the states that layers have put elsewhere to their blocks."""
        for own in self._of_requests.values():
            for cached, layer in zip(own._cached, own.layers, strict=True):
                cached.store_states(layer, own._states[0])

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Any, Any]:
        """Store [num_requests, num_heads, 1, head_size]; return where all are, twice."""
        layer = self._cached[layer_idx]
        pages, place = layer.pages, self._places[layer.window]
        assert pages is not None
        pages.write(place.slots, key_states[:, :, 0], value_states[:, :, 0])
        found = GroupPages(pages, place.blocks, place.starts, place.stops)
        return found, found

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest sequence; masks and positions do not follow from it."""
        return max(self._positions)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """As ``DynamicCache.get_mask_sizes``, for masks that are not made."""
        return max(self._positions) + query_length, 0
