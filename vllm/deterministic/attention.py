"""An attention backend with portable bits; see ``docs/numerics/attention.md``.

The KV cache holds integers of 16 bits with a power of two for each token and head: 4 * head_size +
2 bytes, where 16-bit numbers have 4 * head_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vllm.deterministic import fusion
from vllm.deterministic.fusion import Source
from vllm.deterministic.positions.postponed import is_left, taken
from vllm.fork_kernels.portable.attention import (
    TILE_TOKENS,
    portable_append,
    portable_attention,
    portable_rotate_append,
)
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout, SlidingWindowSpec


@dataclass
class PortableMetadata:
    """Where the tokens of a step are.

    Attributes:
        query_start_loc: int32 [num_requests + 1], the first token of each request, and the end.
        seq_lens: int32 [num_requests], tokens of each request, those of the step included.
        block_table: int32 [num_requests, max_blocks].
        num_tokens: of the step.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    num_tokens: int


class PortableMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Makes `PortableMetadata` of the tensors that vLLM keeps.

    They are the same from step to step, and what is launched follows from their shapes alone, so
    that any step can be replayed as a CUDA graph.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS

    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PortableMetadata:
        """As ``AttentionMetadataBuilder.build``."""
        common = common_attn_metadata
        num_reqs = common.num_reqs
        return PortableMetadata(
            query_start_loc=common.query_start_loc[: num_reqs + 1],
            seq_lens=common.seq_lens[:num_reqs],
            block_table=common.block_table_tensor[:num_reqs],
            num_tokens=common.num_actual_tokens,
        )


class PortableAttentionBackend(AttentionBackend):
    """Tells vLLM who makes metadata and how the cache is laid out."""

    forward_includes_kv_cache_update = False
    """``do_kv_cache_update`` is called before ``forward``."""

    @staticmethod
    def get_name() -> str:
        """As ``AttentionBackend.get_name``."""
        return "PORTABLE"

    @staticmethod
    def get_impl_cls() -> type[PortableAttentionImpl]:
        """As ``AttentionBackend.get_impl_cls``."""
        return PortableAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[PortableMetadataBuilder]:
        """As ``AttentionBackend.get_builder_cls``."""
        return PortableMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Tiles are of 16 tokens."""
        return [MultipleOf(TILE_TOKENS)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """The bytes of a block and head are neighbours."""
        return (KVCacheLayout.LBHNC,)


class PortableAttentionImpl(AttentionImpl[PortableMetadata]):
    """Attention of one layer.

    Args:
        layer: whose ``impl``, which vLLM made, has its numbers.
        slopes: of ALiBi, float32 [num_heads], or None.

    Attributes:
        window: how many tokens a query sees, itself included; 0 for all before it.
    """

    def __init__(self, layer: Attention, slopes: torch.Tensor | None = None) -> None:
        upstream: Any = layer.impl
        self.num_heads = upstream.num_heads
        self.num_kv_heads = upstream.num_kv_heads
        self.head_size = upstream.head_size
        self.scale = upstream.scale
        self.kv_sharing_target_layer_name = upstream.kv_sharing_target_layer_name
        self.window = layer.sliding_window or 0
        self._soft_cap = float(upstream.logits_soft_cap)
        self.sinks = upstream.sinks
        self._slopes = slopes
        self._source = Source()
        self._slots: torch.Tensor | None = None  # of keys that are rotated before they are written

    @property
    def is_plain(self) -> bool:
        """Whether scores are scaled products and nothing else."""
        return not self._soft_cap and self.sinks is None and self._slopes is None

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write key and value, [num_tokens, kv heads, head_size], to their slots; `forward` does,
        if they have not been rotated yet.
        """
        if is_left(key):
            self._slots = slot_mapping
            return
        count = slot_mapping.shape[0]
        portable_append(key[:count], value[:count], kv_cache.flatten(2), slot_mapping)

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: PortableMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As ``AttentionImpl.forward``: query and output are [num_tokens, heads, head_size]."""
        if key is not None:  # of a layer with a cache of its own
            self._rotate(query, key, value, kv_cache)
        if attn_metadata is None:  # no step: layers are tried out
            output.zero_()
        else:
            self._attend(query, kv_cache, attn_metadata, output)
        self._source.made(output.flatten(1))
        return output

    def _rotate(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
    ) -> None:
        """Do what a rotary embedding has left, and then write key and value, if they are to be."""
        fusion.attends(query, key)
        rotation = taken(query, key)
        if rotation is None:
            return
        slots, self._slots = self._slots, None
        if slots is None:
            rotation.rotate(query, key)
        else:
            portable_rotate_append(
                *(query, key, value, rotation.positions, rotation.table, kv_cache.flatten(2)),
                slots,
                is_interleaved=rotation.is_interleaved,
            )

    def _attend(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: PortableMetadata,
        output: torch.Tensor,
    ) -> None:
        count = metadata.num_tokens
        portable_attention(
            query[:count],
            kv_cache.flatten(2),
            metadata.block_table,
            metadata.query_start_loc,
            metadata.seq_lens,
            scale=self.scale,
            window=self.window,
            soft_cap=self._soft_cap,
            slopes=self._slopes,
            sinks=None if self.sinks is None else self.sinks.float(),
            out=output[:count],
            consumer=self._source.consumer if count == len(output) else None,
        )


def kv_cache_spec(layer: Attention, vllm_config: Any) -> FullAttentionSpec | SlidingWindowSpec:
    """Return the cache's shape and size (``Attention.get_kv_cache_spec``), in bytes."""
    shape: dict[str, Any] = {
        "block_size": vllm_config.cache_config.block_size,
        "num_kv_heads": layer.num_kv_heads,
        "head_size": 2 * layer.head_size + 1,
        "head_size_v": 2 * layer.head_size + 1,
        "dtype": torch.uint8,
    }
    if layer.sliding_window is not None:
        return SlidingWindowSpec(sliding_window=layer.sliding_window, **shape)
    return FullAttentionSpec(**shape)
