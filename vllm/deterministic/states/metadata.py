"""Where the states of a step are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from vllm.deterministic.states.recurrences import Requests
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import KVCacheLayout


@dataclass
class StatesMetadata:
    """The requests of a step.

    Attributes:
        slots: int32 [num_requests], the block that each request reads its state from and writes it
            to.
        query_start_loc: int32 [num_requests + 1], the first token of each request, and the end.
        has_state: bool [num_requests], whether tokens of the request came before; else its block
            holds anything.
    """

    slots: torch.Tensor
    query_start_loc: torch.Tensor
    has_state: torch.Tensor

    @property
    def requests(self) -> Requests:
        """What the kernels ask behind their states."""
        return self.slots, self.query_start_loc, self.has_state


class StatesMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Makes `StatesMetadata` of the tensors that vLLM keeps."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> StatesMetadata:
        """As ``AttentionMetadataBuilder.build``.

        The state is in the block of the last token of the step: vLLM has copied it there where the
        prefix cache keeps the block that it was in (``mamba_cache_mode="align"``). Without the
        prefix cache a request has one block.
        """
        common = common_attn_metadata
        num_requests = common.num_reqs
        starts = common.query_start_loc[: num_requests + 1]
        lengths = common.seq_lens[:num_requests]
        last = torch.clamp((lengths - 1) // self.kv_cache_spec.block_size, min=0)
        table = common.block_table_tensor[:num_requests]
        return StatesMetadata(
            slots=table.gather(1, last.long().unsqueeze(1)).squeeze(1),
            query_start_loc=starts,
            has_state=lengths > starts[1:] - starts[:-1],
        )


class StatesBackend(AttentionBackend):
    """Tells vLLM who makes metadata."""

    @staticmethod
    def get_name() -> str:
        """As ``AttentionBackend.get_name``."""
        return "PORTABLE_STATES"

    @staticmethod
    def get_impl_cls() -> NoReturn:
        """There is none: the layers compute."""
        raise NotImplementedError("layers with states compute by themselves")

    @staticmethod
    def get_builder_cls() -> type[StatesMetadataBuilder]:
        """As ``AttentionBackend.get_builder_cls``."""
        return StatesMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        """Whether blocks hold states, and no keys and values."""
        return True

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """The bytes of a block are neighbours."""
        return (KVCacheLayout.LBHNC,)
