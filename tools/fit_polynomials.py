"""Fits the polynomials of csrc/portable/elementary.h and prints them as C++ hexadecimal floats.

Each is fitted to minimise the largest relative error of the function that it is part of: weighted
least squares, with weights that grow where the error is largest. Coefficients are rounded to
float32 one after the other, lowest degree first, and those that are left are fitted again, so that
they make up for the rounding of the ones before.

    python -m tools.fit_polynomials
"""

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np

NODES = 500
REWEIGHTINGS = 80

TAIL_SLOPE = 0.34375  # of the variable of the normal tail; a dyadic number


@dataclass
class Fit:
    """q of degree `degree` so that lead(x) + factor(x) * q(x) is close to the target."""

    name: str
    degree: int
    low: float
    high: float
    target: Callable[[mpmath.mpf], mpmath.mpf]
    quotient: Callable[[mpmath.mpf], mpmath.mpf]  # what q approximates
    factor: Callable[[mpmath.mpf], mpmath.mpf]


def tail_argument(t: mpmath.mpf) -> mpmath.mpf:
    """The a of t = 1 / (1 + TAIL_SLOPE * a)."""
    return (1 / t - 1) / TAIL_SLOPE


def scaled_tail(t: mpmath.mpf) -> mpmath.mpf:
    """The tail of the normal distribution, without its Gaussian factor."""
    a = tail_argument(t)
    return mpmath.erfc(a / mpmath.sqrt(2)) / 2 * mpmath.exp(a * a / 2)


def odd_quotient(function: Callable[[mpmath.mpf], mpmath.mpf], power: int) -> Callable[..., object]:
    """q(z) with function(x) = x + x**power * q(x * x)."""

    def quotient(z: mpmath.mpf) -> mpmath.mpf:
        x = mpmath.sqrt(z)
        return (function(x) - x) / x**power

    return quotient


HALF_LOG2 = float(mpmath.log(2) / 2) * 1.0001
FITS = (
    Fit(
        "exp", 4, -HALF_LOG2, HALF_LOG2, mpmath.exp,
        lambda r: (mpmath.exp(r) - 1 - r) / r**2, lambda r: r**2,
    ),
    Fit(
        "exp2", 5, -0.5, 0.5, lambda f: mpmath.mpf(2) ** f,
        lambda f: (mpmath.mpf(2) ** f - 1) / f, lambda f: f,
    ),
    Fit(
        "log", 7, 2**-0.5 - 1, 2**0.5 - 1, mpmath.log1p,
        lambda f: (mpmath.log1p(f) - f + f * f / 2) / f**3, lambda f: f**3,
    ),
    Fit(
        "tanh", 4, 1e-6, 0.625**2, lambda z: mpmath.tanh(mpmath.sqrt(z)),
        odd_quotient(mpmath.tanh, 3), lambda z: mpmath.sqrt(z) ** 3,
    ),
    Fit(
        "erf", 5, 1e-6, 0.875**2, lambda z: mpmath.erf(mpmath.sqrt(z)),
        odd_quotient(mpmath.erf, 1), mpmath.sqrt,
    ),
    Fit(
        "tail", 9, float(1 / (1 + TAIL_SLOPE * mpmath.mpf(14.5))), 1.0, scaled_tail,
        scaled_tail, lambda t: mpmath.mpf(1),
    ),
)  # fmt: skip


def fit(problem: Fit) -> tuple[list[np.float32], float]:
    """The coefficients, lowest degree first, and the largest relative error with them."""
    points = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    points = (problem.low + problem.high) / 2 + (problem.high - problem.low) / 2 * points
    exact = [mpmath.mpf(float(x)) for x in points]
    quotient = np.array([float(problem.quotient(x)) for x in exact])
    scale = np.array([float(problem.factor(x) / problem.target(x)) for x in exact])
    matrix = points[:, None] ** np.arange(problem.degree + 1)

    rounded: list[np.float32] = []
    while len(rounded) <= problem.degree:
        known = len(rounded)
        rest = quotient - matrix[:, :known] @ np.array(rounded, dtype=np.float64)
        weights = np.ones(NODES)
        for _ in range(REWEIGHTINGS):
            rows = (weights * scale)[:, None] * matrix[:, known:]
            found, *_ = np.linalg.lstsq(rows, weights * scale * rest, rcond=None)
            error = np.abs(scale * (matrix[:, known:] @ found - rest))
            weights *= 1 + 3 * error / error.max()
            weights /= weights.mean()
        rounded.append(np.float32(found[0]))
    left = quotient - matrix @ np.array(rounded, dtype=np.float64)
    return rounded, float(np.abs(scale * left).max())


def main() -> None:
    mpmath.mp.dps = 40
    for problem in FITS:
        coefficients, error = fit(problem)
        print(f"{problem.name}: largest relative error {error:.2g}, highest degree first")
        print("  " + ", ".join(hex_float(c) + "f" for c in reversed(coefficients)))


def hex_float(value: np.float32) -> str:
    """A C++ literal without the zeros that Python writes behind the 24 bits."""
    mantissa, exponent = float(value).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"


if __name__ == "__main__":
    main()
