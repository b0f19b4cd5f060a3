"""Norms with portable bits; see ``docs/numerics/operations.md``, "Norms"."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic.fusion import Source
from vllm.fork_kernels.portable.norm import portable_layer_norm, portable_rms_norm
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm

Normed = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def forward_rms_norm(
    source: Source, layer: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None = None
) -> Normed:
    """``RMSNorm.forward`` of vLLM: x is [..., hidden_size]; with a residual, which is x + residual
    afterwards, both are returned.
    """
    weight = layer.weight.data if layer.has_weight else None
    return _rms_norm(source, x, weight, layer.variance_epsilon, residual, 0.0)


def forward_gemma_rms_norm(
    source: Source, layer: GemmaRMSNorm, x: torch.Tensor, residual: torch.Tensor | None = None
) -> Normed:
    """The same for ``GemmaRMSNorm``, whose weight counts from one."""
    return _rms_norm(source, x, layer.weight.data, layer.variance_epsilon, residual, 1.0)


def forward_joint_rms_norm(source: Source, layer: Any, x: torch.Tensor) -> torch.Tensor:
    """``MiniMaxText01RMSNormTP`` of vLLM on one rank: x is [num_tokens, size]."""
    normed = _rms_norm(source, x, layer.weight.data, layer.variance_epsilon, None, 0.0)
    assert isinstance(normed, torch.Tensor)
    return normed


def _rms_norm(
    source: Source,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    residual: torch.Tensor | None,
    weight_offset: float,
) -> Normed:
    if residual is not None:
        residual = residual.contiguous()
    normed = portable_rms_norm(
        x.contiguous(),
        weight,
        epsilon,
        residual=residual,
        weight_offset=weight_offset,
        consumer=source.consumer,
    )
    source.made(normed)
    return normed if residual is None else (normed, residual)


def forward_layer_norm(
    source: Source, layer: LayerNorm | nn.LayerNorm, x: torch.Tensor
) -> torch.Tensor:
    """``LayerNorm.forward`` of vLLM and of PyTorch: x is [..., size]."""
    epsilon = layer.eps
    weight = None if layer.weight is None else layer.weight.data
    bias = None if layer.bias is None else layer.bias.data
    consumer = source.consumer
    return source.made(
        portable_layer_norm(x.contiguous(), weight, bias, epsilon, consumer=consumer)
    )


def forward_cohere_layer_norm(
    source: Source, layer: Any, x: torch.Tensor, residuals: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``LayerNorm.forward`` of vLLM's Cohere models, which passes the residuals on."""
    weight, epsilon = layer.weight.data, layer.variance_epsilon
    normed = portable_layer_norm(x.contiguous(), weight, None, epsilon, consumer=source.consumer)
    return source.made(normed), residuals


def forward_nemotron_layer_norm(
    source: Source, layer: Any, x: torch.Tensor, residual: torch.Tensor | None = None
) -> Normed:
    """``NemotronLayerNorm1P.forward`` of vLLM, whose weight counts from one."""
    if residual is not None:
        residual = residual.contiguous()
    normed = portable_layer_norm(
        x.contiguous(),
        layer.weight.data + 1.0,
        layer.bias.data,
        layer.eps,
        residual=residual,
        consumer=source.consumer,
    )
    source.made(normed)
    return normed if residual is None else (normed, residual)
