"""Where the tokens of a padded batch stand: in their sequences and in the kernel's cache.

Transformers makes a mask once a forward for all layers of a kind. Deterministic mode's "mask" is a
`Layout`; the kernel needs no mask, since queries are a sequence's last tokens. It never sees
padding, on the left or on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..refusal import attach_refusal as refusal

BLOCK_TOKENS = 64
"""Of a block of the kernel's cache; results do not depend on it."""


class Layout:
    """The tokens of a batch in columns: keys, of which the last `num_queries` are queries, too.

    Args:
        starts: int64 [batch], the column of each row's first token.
        ends: int64 [batch], the column behind its last one; that of `starts` if it has no token.
        first_column: of the keys; columns before it have left a sliding window's cache.
        num_keys: columns of keys.
        num_queries: columns of queries.
        num_seen: keys that the mask lets the last query see.
        device: of the tensors that the kernel reads; they are made on the CPU.

    Attributes:
        slots: int64 [batch * num_keys], where each key goes in the cache; -1 for padding.
        pages: int32 [batch, blocks], the blocks of each sequence.
        num_blocks: of the cache.
        lengths: int32 [batch], tokens so far.
        query_starts: int32 [batch + 1], the first query of each sequence.
        query_rows: int64, which of the batch * num_queries queries are tokens; None for all.
        is_query: bool [batch, num_queries], the same.
    """

    def __init__(
        self,
        starts: torch.Tensor,
        ends: torch.Tensor,
        first_column: int,
        num_keys: int,
        num_queries: int,
        num_seen: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._device = device
        self.num_keys = num_keys
        self.num_queries = num_queries
        self.num_seen = num_seen
        positions = torch.arange(first_column, first_column + num_keys) - starts[:, None]
        lengths = ends - starts
        is_key = (positions >= 0) & (positions < lengths[:, None])
        self._place(positions, is_key, (first_column - starts).clamp(min=0), lengths)
        self.lengths = lengths.to(device, torch.int32)
        self._key_positions = positions
        self._query_positions = positions[:, num_keys - num_queries :]
        is_token = is_key[:, num_keys - num_queries :]
        self._is_query = is_token
        self.is_query = is_token.to(device)
        counts = is_token.sum(1)
        self.query_starts = _after_zero(counts.cumsum(0)).to(device, torch.int32)
        rows = None if is_token.all() else is_token.flatten().nonzero().flatten()
        self.query_rows = None if rows is None else rows.to(device)
        self._has_checked_positions = False
        self._masks: dict[int, torch.Tensor | None] = {}

    def mask(self, window: int) -> torch.Tensor | None:
        """Return which keys the queries see, for implementations of attention that need a mask.

        Args:
            window: how many tokens a query sees, itself included; 0 for all before it.

        Returns:
            bool [batch, 1, num_queries, num_keys], in which padding sees itself; None where all
            queries see all keys up to their own, of which there are as many.
        """
        if window not in self._masks:
            self._masks[window] = self._make_mask(window)
        return self._masks[window]

    def _make_mask(self, window: int) -> torch.Tensor | None:
        is_whole = self.query_rows is None and self.num_queries == self.num_keys
        if is_whole and not 0 < window < self.num_keys:
            return None
        queries, keys = self._query_positions[:, :, None], self._key_positions[:, None]
        is_query = self._is_query[:, :, None]
        seen = (keys <= queries) & (keys >= 0) & is_query
        if window:
            seen &= keys > queries - window
        columns = torch.arange(self.num_keys)
        own = columns[-self.num_queries :, None] == columns
        return (seen | (own & ~is_query))[:, None].to(self._device)

    def _place(
        self,
        positions: torch.Tensor,
        is_key: torch.Tensor,
        first: torch.Tensor,
        lengths: torch.Tensor,
    ) -> None:
        """Give each sequence blocks of its own, for the positions that its keys have."""
        first_block = first // BLOCK_TOKENS
        used = ((lengths + BLOCK_TOKENS - 1) // BLOCK_TOKENS - first_block).clamp(min=0)
        shift = _after_zero(used.cumsum(0))[:-1] - first_block
        slots = shift[:, None] * BLOCK_TOKENS + positions
        self.slots = slots.masked_fill(~is_key, -1).flatten().to(self._device)
        self.num_blocks = max(int(used.sum()), 1)
        width = max(int((first_block + used).max()), 1)
        pages = torch.arange(width) + shift[:, None]
        self.pages = pages.clamp(min=0).to(self._device, torch.int32)

    def check_positions(self, position_ids: torch.Tensor) -> None:
        """Refuse other positions than those counted from each row's first token.

        Args:
            position_ids: int64 [batch or 1, num_queries]; padding may have any.

        Raises:
            ValueError: they are others: of packed sequences, or counted from the padding.
        """
        if self._has_checked_positions:
            return
        check_positions(position_ids, self._query_positions, self._is_query)
        self._has_checked_positions = True


def check_positions(
    position_ids: torch.Tensor, expected: torch.Tensor, is_token: torch.Tensor
) -> None:
    """Refuse other positions than expected, at tokens (`Layout.check_positions`)."""
    if not bool(((position_ids.cpu() == expected) | ~is_token).all()):
        raise refusal(
            "these position_ids",
            "they must count from 0 at the first token of each row, as generate() makes them",
        )


def _after_zero(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers [n] with a 0 before them."""
    return torch.cat((numbers.new_zeros(1), numbers))


def make_layout(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., torch.Tensor] | None = None,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Layout:
    """Return a batch's layout where Transformers asks for a mask (``AttentionMaskInterface``).

    Args:
        batch_size: rows.
        q_length: columns of queries.
        kv_length: columns of keys.
        q_offset: the column of the first query.
        kv_offset: the column of the first key.
        mask_function: of (row, head, column of query, column of key), whether it is seen.
        attention_mask: bool [batch_size, columns], false for padding; None for none.
        device: of the model.
        options: what other implementations need.

    Raises:
        ValueError: there is padding between tokens, the cache has room that is not used, or the
            mask is made of other rules than causality and a window.
    """
    columns = int(q_offset) + q_length
    if kv_offset + kv_length != columns:
        raise refusal(
            "this cache or attention_mask",
            f"for {columns} tokens it has {kv_offset + kv_length} columns: a cache must hold the "
            "tokens so far and no more, as DynamicCache does, and a mask must have one for each",
        )
    if options.get("use_vmap") or mask_function is None:
        raise refusal("this mask", "only causal masks and sliding windows are specified")
    keys = torch.arange(kv_offset, columns, device=device)
    zero, last = torch.tensor([0, columns - 1], device=device)
    seen = mask_function(zero, zero, last, keys)
    starts = torch.zeros(batch_size, dtype=torch.long)
    ends = starts + columns
    if attention_mask is not None:
        starts, ends = ends_of_rows(attention_mask.cpu(), columns)
    num_seen = int(seen.expand(kv_length).sum())
    return Layout(starts, ends, kv_offset, kv_length, q_length, num_seen, device)


def ends_of_rows(mask: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the tokens of each row of a mask start and end, both int64 [batch]."""
    if mask.shape[1] != columns:
        raise refusal(
            "this attention_mask", f"it has {mask.shape[1]} columns, but there are {columns} tokens"
        )
    starts = (mask.cumsum(1) == 0).sum(1)
    ends = starts + mask.sum(1)
    column = torch.arange(columns)
    if not torch.equal(mask, (column >= starts[:, None]) & (column < ends[:, None])):
        raise refusal(
            "this attention_mask",
            "only padding on the left and on the right is specified, and there is some between "
            "the tokens of a row; after padding on the right no tokens may follow, with a cache "
            "either",
        )
    return starts, ends
