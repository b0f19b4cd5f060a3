"""The states of a layer in the blocks of vLLM's KV cache."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from vllm.deterministic.states.metadata import StatesBackend, StatesMetadata
from vllm.forward_context import get_forward_context
from vllm.v1.kv_cache_interface import MambaSpec


class StateForm(NamedTuple):
    """What a request has of a state.

    Attributes:
        shape: of the tensor.
        dtype: of the tensor.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype


def last_inputs(width: int, channels: int, dtype: torch.dtype) -> StateForm:
    """Return the state of a convolution over `width` tokens: its last inputs, oldest first."""
    return StateForm((width - 1, channels), dtype)


def use_states(layer: Any, states: list[StateForm]) -> None:
    """Let a layer (``MambaBase``) have these states, in this order, in its ``kv_cache``."""
    shapes = tuple(one.shape for one in states)
    dtypes = tuple(one.dtype for one in states)
    layer.get_state_shape = lambda: shapes
    layer.get_state_dtype = lambda: dtypes
    layer.get_attn_backend = lambda: StatesBackend
    layer.get_kv_cache_spec = partial(_kv_cache_spec, layer, shapes, dtypes)


def _kv_cache_spec(
    layer: Any,
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[torch.dtype, ...],
    vllm_config: Any,
) -> MambaSpec:
    """Return the shape and size of a block; vLLM enlarges it to that of keys and values."""
    config = vllm_config.cache_config
    return MambaSpec(
        block_size=config.mamba_block_size,
        shapes=shapes,
        dtypes=dtypes,
        mamba_type=layer.mamba_type,
        mamba_cache_mode=config.mamba_cache_mode,
    )


def metadata_of(layer: Any) -> StatesMetadata | None:
    """Return where the states of a layer's step are; None if layers are tried out."""
    every: Any = get_forward_context().attn_metadata
    found = None if every is None else every.get(layer.prefix)
    assert found is None or isinstance(found, StatesMetadata)
    return found
