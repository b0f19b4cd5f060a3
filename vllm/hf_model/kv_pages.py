"""The keys and values of a Transformers model in the blocks of vLLM's KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import pad

from vllm.fork_kernels import append_to_pages
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout, KVCacheSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@dataclass
class StepMetadata:
    """Where the tokens of a step are, for each request of the batch.

    Attributes:
        starts: the first token of each request among those of the step, and the end of the last.
        seq_lens: tokens of each request, those of the step included.
        block_table: int32 [num_requests, max_blocks].
        slots: int64, the place of each token of the step (`LayerPages.slots_of`), which the next
            step overwrites.
        states: of each request, the block in each of the pages of states; empty without.
    """

    starts: list[int]
    seq_lens: list[int]
    block_table: torch.Tensor
    slots: torch.Tensor
    states: list[tuple[int, ...]] = field(default_factory=list)


class StepMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Makes `StepMetadata`."""

    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> StepMetadata:
        """As ``AttentionMetadataBuilder.build``."""
        common = common_attn_metadata
        return StepMetadata(
            starts=common.query_start_loc_cpu[: common.num_reqs + 1].tolist(),
            seq_lens=common.seq_lens[: common.num_reqs].tolist(),
            block_table=common.block_table_tensor,
            slots=common.slot_mapping,
        )


class PagesBackend(AttentionBackend):
    """Tells vLLM how the KV cache is laid out; attention itself is the model's."""

    @staticmethod
    def get_name() -> str:
        """As ``AttentionBackend.get_name``."""
        return "HF_EXACT"

    @staticmethod
    def get_impl_cls() -> Any:
        """There is none: no layer of vLLM computes attention."""
        raise NotImplementedError("the Transformers model computes its attention itself")

    @staticmethod
    def get_builder_cls() -> type[StepMetadataBuilder]:
        """As ``AttentionBackend.get_builder_cls``."""
        return StepMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        """Whether vLLM leaves the size of blocks as it is, whatever its own class of the model."""
        return True

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Any size will do."""
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Tokens of a head and block are neighbours, keys and values of a token too."""
        return (KVCacheLayout.LBHNC,)


class Form(NamedTuple):
    """What is kept of a token.

    Attributes:
        num_heads: of keys and values.
        key_size: of a head.
        value_size: of a head.
        dtype: of all.
    """

    num_heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """How much memory it takes."""
        return self.num_heads * (self.key_size + self.value_size) * self.dtype.itemsize


class LayerPages(AttentionLayerBase):
    """The part of the KV cache that holds one layer's keys and values.

    Args:
        num_heads: of keys and values as the model caches them.
        key_size: of a head.
        value_size: of a head.
        dtype: as the model computes them.
        index_size: of the key by which sparse attention chooses tokens, of no head; 0 without. It
            is kept in the place of further heads.
    """

    def __init__(
        self,
        num_heads: int,
        key_size: int,
        value_size: int,
        dtype: torch.dtype,
        index_size: int = 0,
    ) -> None:
        self.num_heads, self.key_size, self.value_size = num_heads, key_size, value_size
        self.dtype = dtype
        self.index_size = index_size
        self._index_heads = -(-index_size // (key_size + value_size))
        self._room = self.form
        self._kv_cache = torch.empty(0)  # until vLLM binds it

    @property
    def form(self) -> Form:
        """Heads, those of an index included, the sizes of each, and the dtype."""
        return Form(self.num_heads + self._index_heads, self.key_size, self.value_size, self.dtype)

    def make_room(self, form: Form) -> None:
        """Take blocks in which a token has as much room as in other pages, before vLLM binds them:
        it gives those of hybrids one size.
        """
        self._room = form

    @property
    def kv_cache(self) -> torch.Tensor:
        """The memory, [num_blocks, num_heads, block_size, key_size + value_size]."""
        return self._kv_cache

    @kv_cache.setter
    def kv_cache(self, memory: torch.Tensor) -> None:
        heads, size = self.form.num_heads, self.key_size + self.value_size
        room = self._room.num_heads, self._room.key_size + self._room.value_size
        if (heads, size) != room and (*memory.shape[1::2],) == room:
            block_size = memory.shape[2]
            shape = (len(memory), heads, block_size, size)
            stride = (memory.stride(0), block_size * size, size, 1)
            memory = memory.as_strided(shape, stride, memory.storage_offset())
        self._kv_cache = memory

    def get_attn_backend(self) -> type[AttentionBackend]:
        """As ``AttentionLayerBase.get_attn_backend``."""
        return PagesBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """As ``AttentionLayerBase.get_kv_cache_spec``; a sliding window keeps its blocks too."""
        num_heads, key_size, value_size, dtype = self._room
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=num_heads,
            head_size=key_size,
            head_size_v=value_size,
            dtype=dtype,
        )

    def new_memory(
        self, num_requests: int, num_blocks: int, block_size: int, device: torch.device
    ) -> torch.Tensor:
        """Return memory in the place of vLLM's, for some requests with some blocks each."""
        num_heads, key_size, value_size, dtype = self.form
        shape = (num_requests * num_blocks, num_heads, block_size, key_size + value_size)
        return torch.zeros(shape, dtype=dtype, device=device)

    def read(
        self, blocks: torch.Tensor, start: int, stop: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of some keys and values.

        Args:
            blocks: int [num_blocks], of the request.
            start: the first position.
            stop: the position after the last one.

        Returns:
            [1, num_heads, stop - start, key_size] and the same for values.
        """
        found = self._read(blocks, start, stop, slice(self.num_heads))
        return found[..., : self.key_size], found[..., self.key_size :]

    def read_index(self, blocks: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return copies of some keys of the index, [1, stop - start, index_size] (`read`)."""
        found = self._read(blocks, start, stop, slice(self.num_heads, None))
        return found.transpose(1, 2).flatten(2)[..., : self.index_size].contiguous()

    def _read(self, blocks: torch.Tensor, start: int, stop: int, heads: slice) -> torch.Tensor:
        size = self._block_size
        first, last = start // size, -(-stop // size)
        pages = self.kv_cache[blocks[first:last], heads].transpose(0, 1).flatten(1, 2)
        return pages[None, :, start - first * size : stop - first * size]

    def write(
        self,
        slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        index: torch.Tensor | None = None,
    ) -> None:
        """Store keys and values.

        Args:
            slots: int64 [num_tokens] (`slots_of`).
            keys: [num_tokens, num_heads, key_size].
            values: [num_tokens, num_heads, value_size].
            index: [num_tokens, index_size], if there is one.
        """
        if index is not None:
            room = self._index_heads * (self.key_size + self.value_size)
            heads = pad(index, (0, room - self.index_size)).unflatten(1, (self._index_heads, -1))
            keys = torch.cat([keys, heads[..., : self.key_size]], dim=1)
            values = torch.cat([values, heads[..., self.key_size :]], dim=1)
        keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (keys, values))
        append_to_pages(self.kv_cache, keys, values, slots)

    def slots_of(self, blocks: torch.Tensor, spans: Iterable[tuple[int, int]]) -> torch.Tensor:
        """Return the places of tokens, in all layers; int64 [num_tokens].

        Args:
            blocks: int [num_requests, max_blocks].
            spans: the first token of each request, and the one after its last.
        """
        size = self._block_size
        places = []
        for own, (start, stop) in zip(blocks, spans, strict=True):
            positions = torch.arange(start, stop, device=blocks.device)
            places.append(own[positions // size].long() * size + positions % size)
        return torch.cat(places)

    @property
    def _block_size(self) -> int:
        return self.kv_cache.shape[2]
