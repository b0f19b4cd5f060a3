"""RMSNorm and LayerNorm of Transformers with portable bits.

Families write RMSNorm in their own class each, and some store weight - 1. Which it is, is found by
asking the module, so that a new family needs no entry, and a norm of another kind is refused.
"""

from __future__ import annotations

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
        portable_source: knows what takes its results.
    """

    portable_epsilon: float
    portable_source: Source
    weight: nn.Parameter | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of the rows of x [..., size], in its dtype."""
        source, bias = self.portable_source, getattr(self, "bias", None)
        normed = layer_norm(x, self.weight, bias, self.portable_epsilon, source.consumer)
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
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("Norm") or epsilon is None:
        return None
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1 or len(module._parameters) != 1:
        return None
    rows = sample_rows(weight.shape[0], weight.dtype, weight.device)
    expected = module(rows)
    candidates: list[tuple[float, type[Form], dict[str, float]]] = [
        *(
            (
                difference(expected, rms_norm(rows, weight, epsilon, offset)),
                RMSNormForm,
                {"portable_offset": offset},
            )
            for offset in (0.0, 1.0)
        ),
        (difference(expected, layer_norm(rows, weight, None, epsilon)), LayerNormForm, {}),
    ]
    error, form, attributes = min(candidates, key=itemgetter(0))
    return (form, {"portable_epsilon": epsilon, **attributes}) if error < TOLERANCE else None
