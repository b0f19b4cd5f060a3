"""The slopes of ALiBi (Press et al., 2021) without a machine's powers; see
``docs/numerics/attention.md``, "Scores".
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

import torch

_PARTS = 64
_TOLERANCE = 1e-3
_CONTEXT = Context(prec=40)


def portable_slopes(slopes: torch.Tensor) -> torch.Tensor | None:
    """Return powers of two that are rounded once, for those that PyTorch's ``pow`` has rounded.

    Args:
        slopes: float32 [num_heads], about 2^(-j / 64) for whole numbers j, as models with up to 256
            heads have them.

    Returns:
        float32 [num_heads]; None if they are something else.
    """
    if not all(0 < slope < math.inf for slope in slopes.tolist()):
        return None
    exponents = [-_PARTS * math.log2(slope) for slope in slopes.tolist()]
    if not all(abs(exponent - round(exponent)) < _TOLERANCE for exponent in exponents):
        return None
    powers = [_power(round(exponent)) for exponent in exponents]
    return torch.tensor(powers, dtype=torch.float32, device=slopes.device)


def _power(exponent: int) -> float:
    """Return 2^(-exponent / 64), by integers."""
    return float(_CONTEXT.power(Decimal(2), _CONTEXT.divide(Decimal(-exponent), Decimal(_PARTS))))
