"""The tokens of a batch without its padding, and the states of their sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionLayer

from ...refusal import attach_refusal as refusal
from ...states.recurrences import Requests

__all__ = ["Tokens"]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a batch, one sequence after the other.

    Attributes:
        shape: sequences and columns of the batch.
        rows: int64 [num_tokens], which of all the batch's columns are tokens; None for all.
        query_start_loc: int32 [sequences + 1], the first token of each sequence, and the end.
        has_padded_ends: whether there is padding behind the tokens of a sequence.
    """

    shape: tuple[int, int]
    rows: torch.Tensor | None
    query_start_loc: torch.Tensor
    has_padded_ends: bool = False

    @classmethod
    def of(cls, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> Tokens:
        """Return those of a forward.

        Args:
            hidden_states: [sequences, columns, hidden_size].
            mask: [sequences, columns], 0 for padding; None if there is none.
        """
        sequences, columns = hidden_states.shape[:2]
        if mask is None:
            starts = torch.arange(sequences + 1, dtype=torch.int32) * columns
            return cls((sequences, columns), None, starts)
        is_token = mask != 0
        counts = is_token.sum(1).cumsum(0)
        starts = torch.cat((counts.new_zeros(1), counts)).to(torch.int32)
        rows = is_token.flatten().nonzero().flatten()
        has_padded_ends = bool((is_token.any(1) & ~is_token[:, -1]).any())
        return cls((sequences, columns), rows, starts, has_padded_ends)

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, size] of x [sequences, columns, size]."""
        flat = x.flatten(0, 1)
        return flat if self.rows is None else flat[self.rows]

    def scattered(self, x: torch.Tensor) -> torch.Tensor:
        """Return [sequences, columns, size], zero for padding, of x [num_tokens, size]."""
        if self.rows is not None:
            tokens, x = x, x.new_zeros(self.shape[0] * self.shape[1], x.shape[-1])
            x[self.rows] = tokens
        return x.unflatten(0, self.shape)

    @property
    def requests(self) -> Requests:
        """What the kernels ask behind their states."""
        slots = torch.arange(self.shape[0], dtype=torch.int32)
        return slots, self.query_start_loc, torch.ones_like(slots, dtype=torch.bool)

    def states(
        self, cache: Any, index: int, inputs: torch.Tensor, state: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Return the states of a layer, which the kernels change in place; zeros at first.

        Args:
            cache: Transformers', which keeps them; None if nothing does.
            index: of the layer.
            inputs: of the shape and dtype of a sequence's last inputs.
            state: likewise of what the recurrence keeps; None if there is none.

        Raises:
            ValueError: the cache has no place for states, or is of other sequences, of which one
                may have ended with padding, or is to go back to earlier tokens, as for assisted
                generation.
        """
        empty = [
            one.new_zeros(self.shape[0], *one.shape) for one in (inputs, state) if one is not None
        ]
        if cache is None:
            return empty
        layer = cache.layers[index] if index < len(cache.layers) else None
        if not isinstance(layer, LinearAttentionLayer):
            raise refusal(
                "this cache",
                "it has no place for states: make it with DynamicCache(config=model.config)",
            )
        if layer.record_past:
            raise refusal("a cache that goes back", "a state is that of its last token alone")
        if not layer.has_previous_state[0]:
            layer.lazy_initialization(conv_states=empty[0])
            if state is not None:
                layer.lazy_initialization(recurrent_states=empty[1])
            layer.has_previous_state[0] = True
        elif getattr(layer, "portable_is_closed", False):
            raise refusal("this cache", "a prompt that is padded on the right cannot go on")
        layer.portable_is_closed = self.has_padded_ends
        found = [layer.conv_states[0], layer.recurrent_states[0]][: len(empty)]
        if len(found[0]) != self.shape[0]:
            raise refusal(
                "this cache", f"it is of {len(found[0])} sequences, and there are {self.shape[0]}"
            )
        return found
