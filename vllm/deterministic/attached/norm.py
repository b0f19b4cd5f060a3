"""RMSNorm and LayerNorm of Transformers with portable bits.

Families write RMSNorm in their own class each, and some store weight - 1. Which it is, is found by
asking the module, so that a new family needs no entry, and a norm of another kind is refused.
"""

from __future__ import annotations

import inspect
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from vllm.deterministic.fusion import Source

from .form import Form, become
from .gradients.norm import layer_norm, rms_norm
from .sample import TOLERANCE, difference, sample_rows

__all__ = ["LayerNormForm", "RMSNormForm", "adopt_norm"]


class RMSNormForm(Form):
    """RMSNorm.

    Attributes:
        portable_epsilon: is added to the mean square.
        portable_offset: is added to the weight (1 for Gemma).
        portable_source: knows what takes its results.
    """

    portable_epsilon: float
    portable_offset: float
    portable_source: Source
    weight: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of the rows of x [..., size], in its dtype."""
        source = self.portable_source
        epsilon, offset = self.portable_epsilon, self.portable_offset
        return source.made(rms_norm(x, self.weight, epsilon, offset, source.consumer))


class LayerNormForm(Form):
    """LayerNorm.

    Attributes:
        portable_epsilon: is added to the variance.
        portable_offset: is added to the weight, and the sum rounded (1 for Nemotron).
        portable_source: knows what takes its results.
    """

    portable_epsilon: float
    portable_offset: float = 0.0
    portable_source: Source
    weight: nn.Parameter | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of the rows of x [..., size], in its dtype."""
        source, bias = self.portable_source, getattr(self, "bias", None)
        weight = getattr(self, "weight", None)
        if weight is not None and self.portable_offset:
            weight = weight + self.portable_offset
        normed = layer_norm(x, weight, bias, self.portable_epsilon, source.consumer)
        return source.made(normed)


@torch.no_grad()
def adopt_norm(module: Any) -> None:
    """Give a norm over rows its form; other modules, and norms of other kinds, stay as they are."""
    found = _form_of(module)
    if found is not None:
        form, attributes = found
        become(module, form, portable_source=Source(), **attributes)


def _form_of(module: Any) -> tuple[type[Form], dict[str, float]] | None:
    if type(module) is nn.LayerNorm:
        is_of_rows = len(module.normalized_shape) == 1
        return (LayerNormForm, {"portable_epsilon": module.eps}) if is_of_rows else None
    size = _size_of(module)
    if size is None:
        return None
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    like = torch.empty(0) if weight is None else weight
    # Where it has no weight, it does not tell its epsilon, either: small rows do.
    rows = sample_rows(size, like.dtype, like.device) * (1.0 if weight is not None else 2.0**-8)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-5))
    expected = module(rows)
    candidates: list[tuple[float, type[Form], dict[str, float]]] = []
    for offset in (0.0, 1.0) if weight is not None else (0.0,):
        counted = None if weight is None else weight + offset
        error = difference(expected, layer_norm(rows, counted, bias, epsilon))
        candidates.append((error, LayerNormForm, {"portable_offset": offset}))
        if weight is not None and bias is None:
            error = difference(expected, rms_norm(rows, weight, epsilon, offset))
            candidates.append((error, RMSNormForm, {"portable_offset": offset}))
    error, form, attributes = min(candidates, key=itemgetter(0))
    return (form, {"portable_epsilon": epsilon, **attributes}) if error < TOLERANCE else None


def _size_of(module: Any) -> int | None:
    """Return the size of the rows that a norm takes; None if `module` is no norm over rows."""
    names = {name for name, one in module._parameters.items() if one is not None}
    if "Norm" not in type(module).__name__ or any(module.children()):
        return None
    if len(inspect.signature(module.forward).parameters) != 1:  # a gated one wants its gate
        return None
    if names in ({"weight"}, {"weight", "bias"}) and module.weight.dim() == 1:
        has_epsilon = hasattr(module, "variance_epsilon") or hasattr(module, "eps")
        return module.weight.shape[0] if has_epsilon else None
    shape = getattr(module, "normalized_shape", None)
    return shape[0] if not names and shape is not None and len(shape) == 1 else None
