"""Frequencies of rotary embeddings whose bits depend on the arguments alone.

Specified in ``docs/numerics/operations.md``, "Rotary tables". The default frequencies come from the
compiled operator; what scales them is Python's binary64 arithmetic, which is IEEE 754's, and
`decimal` where a logarithm or a power is needed, so that no C library decides about a bit.

Every function returns float32 [size / 2] on CPU. The variants are those of Transformers'
``ROPE_INIT_FUNCTIONS`` which vLLM has as well, from their papers: Su et al. (2021), linear scaling
(Chen et al., 2023), YaRN (Peng et al., 2023), LongRoPE (Ding et al., 2024) and Llama 3.1.
`rope_config` chooses among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal

import torch

from vllm.fork_kernels.portable.rotary import rotary_frequencies

__all__ = [
    "dynamic_frequencies",
    "linear_frequencies",
    "llama3_frequencies",
    "longrope_frequencies",
    "longrope_scale",
    "rotary_frequencies",
    "yarn_frequencies",
    "yarn_scale",
]

TWO_PI = float.fromhex("0x1.921fb54442d18p+2")
"""The binary64 number nearest to 2 * pi."""

PI = Decimal("3.1415926535897932384626433832795028841971693993751")
DIGITS = Context(prec=50)
"""Rounds logarithms and roots to the nearest number of 50 digits: enough to round them again."""


def linear_frequencies(size: int, base: float, factor: float) -> torch.Tensor:
    """Return the default frequencies, divided by a factor.

    Args:
        size: the elements of a head that are rotated, even.
        base: of the default frequencies, 1 to 2^60.
        factor: how many times longer sequences get.
    """
    return _float32(f / factor for f in _default(size, base))


def dynamic_frequencies(
    size: int, base: float, factor: float, max_position: int, trained_positions: int
) -> torch.Tensor:
    """Return the frequencies of NTK scaling for one length, which is `max_position`.

    Transformers grows the base with a sequence, so that a token's bits depend on those behind it;
    vLLM takes the longest sequence's for all, and so does this.

    Args:
        size: the elements of a head that are rotated, even and above 2.
        base: of the default frequencies.
        factor: of the scaling.
        max_position: the length of the longest sequence.
        trained_positions: the length without scaling, in vLLM ``max_trained_positions``.
    """
    stretch = factor * max_position / trained_positions - (factor - 1)
    exponent = DIGITS.divide(Decimal(size), Decimal(size - 2))
    power = DIGITS.exp(DIGITS.multiply(exponent, DIGITS.ln(Decimal(stretch))))
    return rotary_frequencies(size, float(DIGITS.multiply(Decimal(base), power)))


def llama3_frequencies(
    size: int,
    base: float,
    factor: float,
    low_factor: float,
    high_factor: float,
    trained_positions: int,
) -> torch.Tensor:
    """Return the frequencies of Llama 3.1: low ones are divided, those between are interpolated.

    Args:
        size: the elements of a head that are rotated, even.
        base: of the default frequencies.
        factor: by which low frequencies are divided.
        low_factor: full turns in the trained length below which a frequency is low.
        high_factor: full turns above which a frequency is high.
        trained_positions: the trained length, ``original_max_position_embeddings``.
    """

    def scaled(f: float) -> float:
        wavelength = TWO_PI / f
        if wavelength < trained_positions / high_factor:
            return f
        if wavelength > trained_positions / low_factor or low_factor == high_factor:
            return f / factor
        smooth = (trained_positions / wavelength - low_factor) / (high_factor - low_factor)
        return (1 - smooth) * f / factor + smooth * f

    return _float32(scaled(f) for f in _default(size, base))


def yarn_frequencies(
    size: int,
    base: float,
    factor: float,
    trained_positions: int,
    *,
    beta_fast: float = 32,
    beta_slow: float = 1,
    truncate: bool = True,
) -> torch.Tensor:
    """Return the frequencies of YaRN: a ramp leads from the default ones to those divided.

    Args:
        size: the elements of a head that are rotated, even.
        base: of the default frequencies.
        factor: by which low frequencies are divided.
        trained_positions: the trained length, ``original_max_position_embeddings``.
        beta_fast: full turns in the trained length where the ramp begins.
        beta_slow: full turns where it ends.
        truncate: whether its ends are rounded outwards to whole frequencies.
    """

    def place(turns: float) -> Decimal:
        length = DIGITS.multiply(Decimal(turns), DIGITS.multiply(Decimal(2), PI))
        logarithm = DIGITS.ln(DIGITS.divide(Decimal(trained_positions), length))
        numerator = DIGITS.multiply(Decimal(size), logarithm)
        return DIGITS.divide(numerator, DIGITS.multiply(Decimal(2), DIGITS.ln(Decimal(base))))

    low = float(math.floor(place(beta_fast)) if truncate else place(beta_fast))
    high = float(math.ceil(place(beta_slow)) if truncate else place(beta_slow))
    low, high = max(low, 0.0), min(high, float(size - 1))
    width = 0.001 if low == high else high - low

    def scaled(i: int, f: float) -> float:
        ramp = min(max((i - low) / width, 0.0), 1.0)
        return f / factor * ramp + f * (1 - ramp)

    return _float32(scaled(i, f) for i, f in enumerate(_default(size, base)))


def yarn_scale(
    factor: float,
    *,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> float:
    """Return YaRN's factor on cosines and sines; `attention_factor` itself if it is given."""

    def magnitude(weight: float) -> Decimal:
        if factor <= 1:
            return Decimal(1)
        logarithm = DIGITS.ln(Decimal(factor))
        return DIGITS.fma(DIGITS.multiply(Decimal("0.1"), Decimal(weight)), logarithm, Decimal(1))

    if attention_factor is not None:
        return float(attention_factor)
    if mscale and mscale_all_dim:
        return float(DIGITS.divide(magnitude(mscale), magnitude(mscale_all_dim)))
    return float(magnitude(1))


def longrope_frequencies(size: int, base: float, factors: Sequence[float]) -> torch.Tensor:
    """Return the default frequencies, each divided by its own factor.

    Args:
        size: the elements of a head that are rotated, even.
        base: of the default frequencies.
        factors: ``long_factor`` or ``short_factor``, one for each frequency.

    Raises:
        ValueError: there are not size / 2 factors.
    """
    if len(factors) != size // 2:
        raise ValueError(f"longrope needs {size // 2} factors, but there are {len(factors)}.")
    return _float32(f / factor for f, factor in zip(_default(size, base), factors, strict=True))


def longrope_scale(factor: float, trained_positions: int) -> float:
    """Return LongRoPE's factor on cosines and sines.

    Args:
        factor: the longest length divided by the trained one.
        trained_positions: the trained length, ``original_max_position_embeddings``.
    """
    if factor <= 1:
        return 1.0
    ratio = DIGITS.divide(DIGITS.ln(Decimal(factor)), DIGITS.ln(Decimal(trained_positions)))
    return float(DIGITS.sqrt(DIGITS.add(Decimal(1), ratio)))


def _default(size: int, base: float) -> list[float]:
    return rotary_frequencies(size, base).tolist()


def _float32(numbers: Iterable[float]) -> torch.Tensor:
    """Round binary64 numbers to the nearest binary32 ones."""
    return torch.tensor(list(numbers), dtype=torch.float64, device="cpu").to(torch.float32)
