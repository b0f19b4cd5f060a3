"""Gated delta nets; see ``docs/numerics/states.md``.

Source: ``torch_recurrent_gated_delta_rule`` of Transformers, and the layers that call it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from vllm.deterministic.states.cache import StateForm, last_inputs, metadata_of, use_states
from vllm.deterministic.states.decays import load_decays
from vllm.deterministic.states.gated_norm import GatedNorm, use_gated_norm
from vllm.deterministic.states.recurrences import convolve, delta_rule
from vllm.model_executor.layers.mamba.gdn.base import GatedDeltaNetAttention
from vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn import (
    OlmoHybridGatedDeltaNetAttention,
)
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

_GATES = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


def objection(layer: GatedDeltaNetAttention) -> str | None:
    """Return why a delta net cannot be computed; None if it can."""
    if layer.activation not in ("silu", "swish"):
        return f"the activation {layer.activation} of its convolution is not specified"
    return None


def use_qwen_net(layer: QwenGatedDeltaNetAttention) -> None:
    """Let the layer of Qwen3-Next and Qwen3.5 compute with portable bits."""
    load_decays(layer, "A_log", layer.model_config.dtype)
    _use_parts(layer, layer.norm)
    layer.forward = partial(_forward_qwen, layer)


def use_olmo_net(layer: OlmoHybridGatedDeltaNetAttention) -> None:
    """Let the layer of OLMo hybrid compute with portable bits."""
    load_decays(layer, "A_log", torch.float32)
    layer.o_norm.to(layer.model_config.dtype)  # vLLM has it in the checkpoint's
    _use_parts(layer, layer.o_norm)
    layer.forward = partial(_forward_olmo, layer)


def _use_parts(layer: Any, norm: Any) -> None:
    use_gated_norm(
        norm, GatedNorm(norm.eps, layer.head_v_dim, norm.norm_before_gate, _GATES[norm.activation])
    )
    use_states(
        layer,
        [
            last_inputs(layer.conv_kernel_size, layer.conv_dim, layer.model_config.dtype),
            StateForm((layer.num_v_heads, layer.head_k_dim, layer.head_v_dim), torch.float32),
        ],
    )


def _forward_qwen(layer: QwenGatedDeltaNetAttention, hidden_states: torch.Tensor) -> torch.Tensor:
    """As ``QwenGatedDeltaNetAttention.forward``: both are [num_tokens, hidden_size]."""
    qkvz, _ = layer.in_proj_qkvz(hidden_states)
    ba, _ = layer.in_proj_ba(hidden_states)
    if layer.gqa_interleaved_layout:  # Qwen3-Next's, by the heads of keys
        q, k, v, gate, b, a = layer.fix_query_key_value_ordering(qkvz, ba)
        mixed = torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], dim=-1)
    else:
        mixed, gate = qkvz.split([layer.conv_dim, layer.value_dim], dim=-1)
        gate = gate.unflatten(-1, (layer.num_v_heads, layer.head_v_dim))
        b, a = ba.chunk(2, dim=-1)
    output, _ = layer.out_proj(layer.norm(_attend(layer, mixed, a, b), gate).flatten(1))
    return output


def _forward_olmo(
    layer: OlmoHybridGatedDeltaNetAttention, hidden_states: torch.Tensor, output: torch.Tensor
) -> None:
    """As ``OlmoHybridGatedDeltaNetAttention.forward``, which writes to `output`."""
    qkvg, _ = layer.in_proj_qkvg(hidden_states)
    b, _ = layer.b_proj(hidden_states)
    a, _ = layer.a_proj(hidden_states)
    mixed, gate = qkvg.split([layer.conv_dim, layer.value_dim], dim=-1)
    gate = gate.unflatten(-1, (layer.num_v_heads, layer.head_v_dim))
    attended = _attend(layer, mixed, a, b, doubles_beta=layer.allow_neg_eigval)
    result, _ = layer.o_proj(layer.o_norm(attended, gate).flatten(1))
    output.copy_(result)


def _attend(
    layer: Any,
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    doubles_beta: bool = False,
) -> torch.Tensor:
    """Return what the delta rule makes of a step, [num_tokens, value heads, head_v_dim].

    Args:
        layer: the delta net.
        mixed: [num_tokens, conv_dim], queries, keys and values before the convolution.
        a: [num_tokens, value heads], what the decay is made of.
        b: likewise, what beta is made of.
        doubles_beta: whether beta is in 0..2.
    """
    metadata = metadata_of(layer)
    if metadata is None:
        return mixed.new_zeros(len(mixed), layer.num_v_heads, layer.head_v_dim)
    inputs, states = layer.kv_cache
    mixed = convolve(layer.conv1d, mixed, inputs, metadata.requests)
    return delta_rule(layer, mixed, a, b, states, metadata.requests, doubles_beta=doubles_beta)
