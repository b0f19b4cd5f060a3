"""Attention on CPU as Hugging Face computes it: PyTorch's, one request at a time."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from vllm.v1.attention.backend import AttentionLayer, AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl, CPUAttentionMetadata


class HFAttentionImpl(CPUAttentionBackendImpl):
    """vLLM's paged cache, read request by request into PyTorch's attention.

    Blocks hold keys beside values, [block, kv head, position, 2 * head_size], instead of the
    packed keys of vLLM's kernel: the cache is this layer's own.
    """

    def __init__(self, upstream: CPUAttentionBackendImpl, scales_query: bool) -> None:
        self.__dict__.update(vars(upstream))
        self._scales_query = scales_query

    @staticmethod
    def can_replace(upstream: object) -> bool:
        """Whether `upstream` computes what ``sdpa_attention_forward`` does."""
        if not isinstance(upstream, CPUAttentionBackendImpl):
            return False
        return (
            type(upstream) is CPUAttentionBackendImpl
            and upstream.attn_type == AttentionType.DECODER
            and upstream.alibi_slopes is None
            and not upstream.logits_soft_cap
            and upstream.sinks is None
            and not upstream.is_fp8_kv_cache
        )

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write key and value, [num_tokens, kv heads, head_size], to their slots."""
        block_size = kv_cache.size(2)
        rows = torch.cat((key, value), dim=-1)[: slot_mapping.shape[0]]
        kv_cache[slot_mapping // block_size, :, slot_mapping % block_size] = rows

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
        starts = attn_metadata.query_start_loc.tolist()
        for row, length in enumerate(attn_metadata.seq_lens.tolist()):
            begin, end = starts[row], starts[row + 1]
            if begin < end:
                blocks = attn_metadata.block_table[row, : -(-length // kv_cache.size(2))]
                keys_values = kv_cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length]
                output[begin:end] = self._attend(query[begin:end], keys_values, scale)
        return output

    def _attend(self, query: torch.Tensor, keys_values: torch.Tensor, scale: float) -> torch.Tensor:
        """Attend from the last positions of one request.

        Args:
            query: [num_queries, heads, head_size].
            keys_values: [kv heads, length, 2 * head_size], of all positions.
            scale: factor of the scores.

        Returns:
            [num_queries, heads, head_size].

        Source: ``sdpa_attention_forward``. Queries that follow cached ones are put where they are
        in the prompt, after rows of zeros: the kernel takes its queries in blocks from the first.
        """
        num_queries, length = query.shape[0], keys_values.shape[1]
        if num_queries > 1:
            query = torch.nn.functional.pad(query, (0, 0, 0, 0, length - num_queries, 0))
        key, value = keys_values[None].chunk(2, dim=-1)
        attended = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key,
            value,
            is_causal=num_queries > 1,
            scale=scale,
            enable_gqa=self.num_heads != self.num_kv_heads,
        )
        return attended[0].transpose(0, 1)[-num_queries:]
