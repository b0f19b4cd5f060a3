"""What layers with states compute of the tokens of requests, in vLLM's layers and in Transformers':
both have the same names for what is read here.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm.fork_kernels.portable.states import (
    portable_causal_conv,
    portable_gated_delta_rule,
    portable_mamba2_scan,
)

Requests = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""``slots``, ``query_start_loc`` and ``has_state`` of the kernels."""


def convolve(
    conv: Any,
    x: torch.Tensor,
    states: torch.Tensor,
    requests: Requests,
    activation: str | None = "silu",
) -> torch.Tensor:
    """Return the convolution of each request's tokens, and keep their last inputs.

    Args:
        conv: the layer that holds weight [channels, 1, width] and bias.
        x: bfloat16 or float16 [num_tokens, channels].
        states: [num_blocks, width - 1, channels], of the dtype of `x`.
        requests: of the step.
        activation: "silu" or None.

    Returns:
        Like x.
    """
    bias = None if conv.bias is None else conv.bias.data
    weight = conv.weight.data.squeeze(1)
    return portable_causal_conv(x, weight, bias, states, *requests, activation=activation)


def scan(
    layer: Any,
    a_log: torch.Tensor,
    mixed: torch.Tensor,
    dt: torch.Tensor,
    states: torch.Tensor,
    requests: Requests,
    limits: tuple[float, float],
) -> torch.Tensor:
    """Return what the recurrence of Mamba 2 makes of tokens, [num_tokens, intermediate_size].

    Args:
        layer: the mixer.
        a_log: its parameter, which has another name in vLLM.
        mixed: [num_tokens, conv_dim], x, B and C behind the convolution.
        dt: [num_tokens, heads].
        states: see `portable_mamba2_scan`.
        requests: of the step.
        limits: of the time step.
    """
    groups = layer.n_groups * layer.ssm_state_size
    x, b, c = mixed.split([layer.intermediate_size, groups, groups], dim=-1)
    scanned = portable_mamba2_scan(
        x.unflatten(-1, (layer.num_heads, layer.head_dim)),
        dt,
        a_log.data,
        b.unflatten(-1, (layer.n_groups, layer.ssm_state_size)),
        c.unflatten(-1, (layer.n_groups, layer.ssm_state_size)),
        layer.D.data,
        layer.dt_bias.data,
        states,
        *requests,
        dt_limits=limits,
    )
    return scanned.flatten(1)


def delta_rule(
    layer: Any,
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    states: torch.Tensor,
    requests: Requests,
    *,
    doubles_beta: bool = False,
) -> torch.Tensor:
    """Return what the delta rule makes of tokens, [num_tokens, value heads, head_v_dim].

    Args:
        layer: the delta net.
        mixed: [num_tokens, conv_dim], queries, keys and values behind the convolution.
        a: [num_tokens, value heads], what the decay is made of.
        b: likewise, what beta is made of.
        states: see `portable_gated_delta_rule`.
        requests: of the step.
        doubles_beta: whether beta is in 0..2.
    """
    q, k, v = mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
    return portable_gated_delta_rule(
        q.unflatten(-1, (layer.num_k_heads, layer.head_k_dim)),
        k.unflatten(-1, (layer.num_k_heads, layer.head_k_dim)),
        v.unflatten(-1, (layer.num_v_heads, layer.head_v_dim)),
        a.contiguous(),
        b.contiguous(),
        layer.A_log.data,
        layer.dt_bias.data,
        states,
        *requests,
        scale=layer.head_k_dim**-0.5,
        doubles_beta=doubles_beta,
    )
