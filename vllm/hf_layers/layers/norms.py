"""RMS norms in Hugging Face's order: the residual sum is rounded before it is normalised."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import nn

from vllm.fork_kernels import has_rounded_layers, rms_norm_rounded
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

Normed = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


_SAMPLE = torch.randn(65, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
"""A weight and 64 rows: enough for the ways to differ."""


class Scaling(Enum):
    """How a family of models multiplies with the weight."""

    ROUNDED = "weight * x.to(dtype)"  # LlamaRMSNorm
    FLOAT32 = "(weight * x).to(dtype)"  # Olmo2RMSNorm, GptOssRMSNorm, Gemma4RMSNorm


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, scaling: Scaling
) -> torch.Tensor:
    """Normalise `x`, [..., hidden_size], in float32, and scale it with `weight`, [hidden_size].

    Returns:
        [..., hidden_size], of the dtype of `x` (and that of `weight`, if it is wider).

    Source: ``LlamaRMSNorm.forward``, ``Olmo2RMSNorm.forward``, ``Gemma4RMSNorm.forward``.
    """
    wide = x.to(torch.float32)
    mean_square = wide.pow(2).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(mean_square + epsilon)
    if weight is None:
        return wide.to(x.dtype)
    if scaling is Scaling.ROUNDED:
        return weight * wide.to(x.dtype)
    return (wide * weight.float()).to(x.dtype)


def forward_rms_norm(
    layer: RMSNorm,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    *,
    scaling: Scaling,
) -> Normed:
    """`RMSNorm.forward` of vLLM with `rms_norm`; see `with_residual`."""
    weight = layer.weight.data if layer.has_weight else None
    if (
        scaling is Scaling.ROUNDED
        and weight is not None
        and weight.dtype == x.dtype
        and has_rounded_layers(x)
        and x.is_contiguous()
        and (residual is None or (residual.dtype == x.dtype and residual.is_contiguous()))
    ):
        normed, total = rms_norm_rounded(x, weight, layer.variance_epsilon, residual)
        return normed if residual is None else (normed, total)
    return with_residual(
        lambda total: rms_norm(total, weight, layer.variance_epsilon, scaling), x, residual
    )


def forward_gemma_rms_norm(
    layer: GemmaRMSNorm, x: torch.Tensor, residual: torch.Tensor | None = None
) -> Normed:
    """`GemmaRMSNorm.forward` of vLLM as ``GemmaRMSNorm.forward`` of Hugging Face."""
    weight = 1.0 + layer.weight.data.float()
    return with_residual(
        lambda total: rms_norm(total, weight, layer.variance_epsilon, Scaling.FLOAT32), x, residual
    )


def with_residual(
    norm: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, residual: torch.Tensor | None
) -> Normed:
    """Return ``norm(x)``, or with a residual the norm of the sum, and the sum, rounded."""
    if residual is None:
        return norm(x)
    total = residual + x
    return norm(total), total


@cache
def scaling_of(configuration: str) -> Scaling:
    """Return how the models of a module of configurations scale their norms in Transformers.

    `configuration` is for example "transformers.models.llama.configuration_llama". Found by trying:
    Hugging Face's class is run on a sample and compared with each way. Models that Transformers
    does not have, or has no norm of this kind for, get `Scaling.ROUNDED`.
    """
    modeling = configuration.replace(".configuration_", ".modeling_")
    if not modeling.startswith("transformers.models."):
        return Scaling.ROUNDED
    try:
        classes = vars(importlib.import_module(modeling))
    except ModuleNotFoundError:  # a configuration without a model of its own
        return Scaling.ROUNDED
    for name, norm_class in classes.items():
        if name.endswith("RMSNorm") and inspect.isclass(norm_class):
            found = _matching(norm_class)
            if found is not None:
                return found
    return Scaling.ROUNDED


def _matching(norm_class: type[Any]) -> Scaling | None:
    try:
        norm = norm_class(64)
    except TypeError:  # one that takes more than a size: not the norm of the hidden states
        return None
    weight = getattr(norm, "weight", None)
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, nn.Parameter) or weight.shape != (64,) or epsilon is None:
        return None
    x, weight.data = _SAMPLE[1:], _SAMPLE[0]
    expected = norm(x)
    ways = [way for way in Scaling if torch.equal(rms_norm(x, _SAMPLE[0], epsilon, way), expected)]
    return ways[0] if ways else None
