"""Prompts through xformers' memory-efficient attention (Lefaudeux et al., xformers, 2022).

`--attention-backend XFORMERS`, for those who compare with what they had when it was vLLM's default.
Keys and values are in the KV cache of the Triton backend, whose kernel computes requests that add
one token; requests that add several, as prompts do, are xformers'.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadata,
    TritonAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

try:
    from xformers.ops import fmha
except ImportError as error:
    raise ImportError(
        "the attention backend XFORMERS needs its package: pip install 'vllm[xformers]'"
    ) from error


@dataclass
class Prefills:
    """The requests of a step that add more than one token.

    Attributes:
        blocks: of the KV cache, int64 [num_keys], for the keys of each request in their order.
        offsets: within the blocks, likewise.
        mask: which keys the queries see.
    """

    blocks: torch.Tensor
    offsets: torch.Tensor
    mask: Any
    _windows: dict[int, Any] = field(default_factory=dict)

    def mask_of(self, window: int) -> Any:
        """Return the mask of layers whose queries see so many keys, themselves included; all if 0.

        It is made once for all layers of a step.
        """
        if not window:
            return self.mask
        if window not in self._windows:
            self._windows[window] = self.mask.make_local_attention_from_bottomright(window)
        return self._windows[window]


@dataclass
class XFormersMetadata:
    """Where the tokens of a step are: first those of requests that add one, then the others'.

    Attributes:
        num_decode_tokens: of the first.
        num_actual_tokens: of all.
        decodes: of the first, if there are any.
        prefills: of the others, if there are any.
    """

    num_decode_tokens: int
    num_actual_tokens: int
    decodes: TritonAttentionMetadata | None
    prefills: Prefills | None


class XFormersMetadataBuilder(TritonAttentionMetadataBuilder):
    """Makes `XFormersMetadata`."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = (
        AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    )
    reorder_batch_threshold = 1

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> XFormersMetadata:
        """As ``AttentionMetadataBuilder.build``."""
        common = common_attn_metadata
        num_decodes, num_prefills, num_decode_tokens, _ = split_decodes_and_prefills(common)
        decodes = None
        if num_decodes:
            first = common.unpadded(num_decode_tokens, num_decodes).replace(max_query_len=1)
            decodes = super().build(common_prefix_len, first, fast_build)
        return XFormersMetadata(
            num_decode_tokens,
            common.num_actual_tokens,
            decodes,
            self._prefills(common, num_decodes) if num_prefills else None,
        )

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> XFormersMetadata:
        """As ``AttentionMetadataBuilder.build_for_cudagraph_capture``: of single tokens."""
        metadata = self.build(0, common_attn_metadata)
        assert metadata.decodes is not None
        metadata.decodes.seq_lens.fill_(1)  # the longest would be slow to capture
        return metadata

    def _prefills(self, common: CommonAttentionMetadata, start: int) -> Prefills:
        """Return where the keys of the requests from `start` on are."""
        stop = common.num_reqs
        query_lens = common.query_start_loc_cpu[start : stop + 1].diff().tolist()
        lengths = common.seq_lens[start:stop].long()
        # The host's own numbers may count drafts that were rejected: this waits for the device.
        key_lens = lengths.tolist()
        device, num_keys = lengths.device, sum(key_lens)
        requests = torch.repeat_interleave(lengths, output_size=num_keys)
        first_keys = lengths.cumsum(0) - lengths
        positions = torch.arange(num_keys, device=device) - first_keys[requests]
        pages = common.block_table_tensor[start:stop]
        return Prefills(
            pages[requests, positions // self.block_size].long(),
            positions % self.block_size,
            fmha.attn_bias.BlockDiagonalCausalFromBottomRightMask.from_seqlens(
                query_lens, key_lens, device=device
            ),
        )


class XFormersBackend(TritonAttentionBackend):
    """Tells vLLM what this backend can do: causal attention without sinks, on plain caches."""

    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        """As ``AttentionBackend.get_name``."""
        return "XFORMERS"

    @staticmethod
    def get_impl_cls() -> type[XFormersImpl]:
        """As ``AttentionBackend.get_impl_cls``."""
        return XFormersImpl

    @staticmethod
    def get_builder_cls() -> type[XFormersMetadataBuilder]:
        """As ``AttentionBackend.get_builder_cls``."""
        return XFormersMetadataBuilder

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """As ``AttentionBackend.supports_attn_type``."""
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_non_causal(cls) -> bool:
        """As ``AttentionBackend.supports_non_causal``."""
        return False

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        """As ``AttentionBackend.supports_mm_prefix``."""
        return False

    @classmethod
    def supports_rswa(cls) -> bool:
        """As ``AttentionBackend.supports_rswa``."""
        return False

    @classmethod
    def supports_sink(cls) -> bool:
        """As ``AttentionBackend.supports_sink``."""
        return False

    @classmethod
    def supports_alibi_sqrt(cls) -> bool:
        """As ``AttentionBackend.supports_alibi_sqrt``."""
        return False

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """As ``AttentionBackend.supports_batch_invariance``."""
        return False


class XFormersImpl(TritonAttentionImpl):
    """Attention of one layer; arguments are those of ``TritonAttentionImpl``.

    Raises:
        ValueError: the layer has slopes of ALiBi or a soft cap.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, is_given in {
            "ALiBi": self.alibi_slopes is not None,
            "a soft cap on its scores": bool(self.logits_soft_cap),
        }.items():
            if is_given:
                raise ValueError(
                    f"The attention backend XFORMERS cannot compute this model, which has {name}: "
                    "choose another one."
                )

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: XFormersMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As ``AttentionImpl.forward``: query and output are [num_tokens, heads, head_size]."""
        if attn_metadata is None:  # no step: vLLM measures memory
            return output.fill_(0)
        split, stop = attn_metadata.num_decode_tokens, attn_metadata.num_actual_tokens
        if attn_metadata.decodes is not None:
            tokens = query[:split], key[:split], value[:split]
            super().forward(layer, *tokens, kv_cache, attn_metadata.decodes, output[:split])
        if attn_metadata.prefills is not None:
            output[split:stop] = self._prefill(query[split:stop], kv_cache, attn_metadata.prefills)
        return output

    def _prefill(
        self, query: torch.Tensor, kv_cache: torch.Tensor, prefills: Prefills
    ) -> torch.Tensor:
        """Return [tokens, heads, head_size] of the requests that add several tokens.

        Args:
            query: of the same shape.
            kv_cache: [blocks, kv_heads, block_size, 2 * head_size].
            prefills: where their keys are.
        """
        kv_heads, size = self.num_kv_heads, self.head_size
        found = kv_cache[prefills.blocks, :, prefills.offsets]  # [keys, kv_heads, 2 * head_size]
        by_group = (1, -1, kv_heads, self.num_heads // kv_heads, size)
        keys, values = (x[None, :, :, None].expand(by_group) for x in found.split(size, dim=-1))
        attended = fmha.memory_efficient_attention_forward(
            query.reshape(by_group),
            keys,
            values,
            attn_bias=prefills.mask_of(self.sliding_window[0] + 1),
            scale=self.scale,
        )
        return attended.reshape(-1, self.num_heads, size)
