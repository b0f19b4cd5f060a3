"""Attention on CPU as Hugging Face computes it: PyTorch's, for each request alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vllm.fork_kernels import append_to_pages, has_paged_sdpa
from vllm.hf_layers.attention.paged_attention import attend_in_pages
from vllm.hf_layers.attention.prompt_attention import attend_to_prompts
from vllm.hf_layers.attention.single_tokens import SingleTokens, single_tokens_of
from vllm.hf_layers.step_rows import Pieces, pieces_of
from vllm.v1.attention.backend import AttentionLayer, AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl, CPUAttentionMetadata


class HFAttentionImpl(CPUAttentionBackendImpl):
    """vLLM's paged cache, read request by request into PyTorch's attention.

    Blocks hold keys beside values, [block, kv head, position, 2 * head_size], instead of the
    packed keys of vLLM's kernel: the cache is this layer's own.
    """

    has_slopes = False
    """Whether scores have ALiBi's slopes (Press et al., 2021)."""
    may_use_operator = True
    """Whether single tokens have the bits of this project's operator for ``sdpa`` in pages."""

    def __init__(self, upstream: CPUAttentionBackendImpl, scales_query: bool) -> None:
        self.__dict__.update(vars(upstream))
        self._scales_query = scales_query
        groups = self.num_heads // self.num_kv_heads
        self._module: Any = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
        # Transformers repeats larger heads, and one operator would not have its bits.
        self._has_operator = (
            self.may_use_operator
            and has_paged_sdpa(torch.device("cpu"))
            and (groups == 1 or self.head_size <= 256)
        )

    @property
    def takes_single_tokens(self) -> bool:
        """Whether single tokens are given to the operator for ``sdpa`` in pages as they are."""
        return self._has_operator and not self._scales_query

    @classmethod
    def can_replace(cls, upstream: object) -> bool:
        """Whether `upstream` computes what this class does."""
        return cls.why_not(upstream) is None

    @classmethod
    def why_not(cls, upstream: object) -> str | None:
        """Return what `upstream` computes that this class does not; None if it can replace it."""
        if not isinstance(upstream, CPUAttentionBackendImpl):
            return f"attention of another kind ({type(upstream).__name__})"
        found = {
            f"attention of another kind ({type(upstream).__name__})": (
                type(upstream) is not CPUAttentionBackendImpl
            ),
            f"{upstream.attn_type} attention": upstream.attn_type != AttentionType.DECODER,
            "ALiBi other than BLOOM's": (upstream.alibi_slopes is not None and not cls.has_slopes),
            "scores without BLOOM's ALiBi": upstream.alibi_slopes is None and cls.has_slopes,
            "scores with a soft cap": bool(upstream.logits_soft_cap),
            "attention sinks": upstream.sinks is not None,
            "keys and values in fp8": upstream.is_fp8_kv_cache,
        }
        return next((what for what, is_there in found.items() if is_there), None)

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write key and value, [num_tokens, kv heads, head_size], to their slots."""
        append_to_pages(kv_cache, key, value, slot_mapping)

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `CPUAttentionBackendImpl.forward`."""
        if attn_metadata is None:  # warming up
            return output
        scale = self.scale
        if self._scales_query:
            query, scale = query * scale, 1.0
        single = single_tokens_of(attn_metadata) if self._has_operator else None
        if single is not None:
            output[single.rows] = self._attend_single(query[single.rows], kv_cache, single, scale)
        pieces = pieces_of(attn_metadata)
        if self._has_operator and not pieces.several:
            return output
        if self._has_operator and self._needs_no_mask(pieces):
            attend_to_prompts(
                query,
                kv_cache,
                attn_metadata.block_table,
                pieces.spans_of_several,
                output,
                key_size=self.head_size,
                scale=scale,
                enable_gqa=self.num_heads != self.num_kv_heads,
            )
            return output
        for piece, begin, end in pieces.several if self._has_operator else pieces.spans:
            length, request = pieces.seq_lens[piece], pieces.requests[piece]
            blocks = attn_metadata.block_table[request, : -(-length // kv_cache.size(2))]
            keys_values = kv_cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length]
            output[begin:end] = self._attend(query[begin:end], keys_values, scale)
        return output

    def _needs_no_mask(self, pieces: Pieces) -> bool:
        """Whether all prompts of a step fit into the window: see `_mask`."""
        return self.sliding_window <= 0 or pieces.longest < self.sliding_window

    def _attend_single(
        self, query: torch.Tensor, kv_cache: torch.Tensor, single: SingleTokens, scale: float
    ) -> torch.Tensor:
        """Attend from single tokens, [num_tokens, heads, head_size].

        Args:
            query: likewise.
            kv_cache: of the layer.
            single: the tokens.
            scale: factor of the scores.
        """
        attended = attend_in_pages(
            query.contiguous().unsqueeze(2),
            kv_cache,
            single.blocks,
            single.starts(max(self.sliding_window, 0)),
            single.stops,
            key_size=self.head_size,
            scale=scale,
            enable_gqa=self.num_heads != self.num_kv_heads,
        )
        return attended[:, 0]

    def _attend(self, query: torch.Tensor, keys_values: torch.Tensor, scale: float) -> torch.Tensor:
        """Attend from the last positions of one request.

        Args:
            query: [num_queries, heads, head_size].
            keys_values: [kv heads, length, 2 * head_size], of all positions.
            scale: factor of the scores.

        Returns:
            [num_queries, heads, head_size].

        Queries that follow cached ones are put where they are in the prompt, after rows of zeros:
        the kernel takes its queries in blocks from the first.
        """
        num_queries, length = query.shape[0], keys_values.shape[1]
        mask = None
        if num_queries > 1:
            query = torch.nn.functional.pad(query, (0, 0, 0, 0, length - num_queries, 0))
            mask = self._mask(length)
        elif self.sliding_window > 0:
            keys_values = keys_values[:, -self.sliding_window :]
        key, value = keys_values.chunk(2, dim=-1)
        return self._attend_whole(query.transpose(0, 1), key, value, mask, scale)[-num_queries:]

    def _attend_whole(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        """Attend from all positions of one request, or from its last one.

        Args:
            query: [heads, num_queries, head_size].
            key: [kv heads, length, head_size].
            value: as `key`.
            mask: bool [1, 1, length, length], True where a query attends; None if it is causal.
            scale: factor of the scores.

        Returns:
            [num_queries, heads, head_size].
        """
        by_head = (x[None] for x in (query, key, value))
        attended, _ = sdpa_attention_forward(self._module, *by_head, mask, scaling=scale)
        return attended[0]

    def _mask(self, length: int) -> torch.Tensor | None:
        """Return the mask that ``masking_utils.sdpa_mask`` makes, [1, 1, length, length], for a
        text that does not fit into the window; others need none.
        """
        if not 0 < self.sliding_window <= length:
            return None
        positions = torch.arange(length)
        distance = positions[:, None] - positions
        return ((distance >= 0) & (distance < self.sliding_window))[None, None]
