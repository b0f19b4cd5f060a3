"""Mixtures of experts of docs/numerics in NumPy: slow, plain, and written from the pages alone."""

import numpy as np
from numpy.typing import NDArray

from tests.kernels.portable_reference import FUNCTIONS, exp, log_softmax, ranking
from tests.kernels.product.portable_product_reference import (
    Floats,
    exponents_of,
    product_bits,
    rounded_bits,
    statistics_of,
)

LEAST_EXPONENTIAL = np.float32(2.0**-32)
LEAST_PRODUCT = np.float32(2.0**-102)


def route(logits: Floats, count: int, *, is_renormalised: bool) -> tuple[Floats, list[int]]:
    """The weights and indices of the experts of one token."""
    chosen = [int(expert) for expert in ranking(logits)[:count]]
    with np.errstate(invalid="ignore"):
        if not is_renormalised:
            return _exp(log_softmax(logits)[chosen]), chosen
        exponentials = _exp(logits[chosen] - logits[chosen[0]])
    total = exponentials[0]
    for value in exponentials[1:]:
        total = total + value
    return exponentials / total, chosen


def _exp(x: Floats) -> Floats:
    values = exp(x)
    return np.where(values < LEAST_EXPONENTIAL, np.float32(0), values)


def mixture(
    x: Floats,
    weights: Floats,
    experts: list[int],
    gate_up: Floats,
    down: Floats,
    function: str,
    dtype: str,
) -> Floats:
    """The result of one token x [hidden_size], in the numbers of a format.

    `gate_up` is [experts, 2 * intermediate_size, hidden_size], `down` the other way round.
    """
    total = None
    for weight, expert in zip(weights, experts, strict=True):
        product = weight * output(x, gate_up[expert], down[expert], function, dtype)
        product = np.where(np.abs(product) < LEAST_PRODUCT, np.float32(0), product)
        total = product if total is None else total + product
    assert total is not None
    return as_format(total, dtype)


def output(x: Floats, gate_up: Floats, down: Floats, function: str, dtype: str) -> Floats:
    gate, up = np.split(_product(x, gate_up, dtype), 2)
    gated = as_format(FUNCTIONS[function](gate) * up, dtype)
    return _product(gated, down, "float32")


def _product(x: Floats, weight: Floats, dtype: str) -> Floats:
    exponents = exponents_of(statistics_of(weight))
    return _numbers(product_bits(x[None], weight, exponents, None, dtype)[0], dtype)


def as_format(x: Floats, dtype: str) -> Floats:
    """Numbers rounded to a format."""
    return _numbers(rounded_bits(np.ascontiguousarray(x), dtype), dtype)


def _numbers(bits: NDArray[np.uint16] | NDArray[np.uint32], dtype: str) -> Floats:
    if dtype == "float32":
        return bits.view(np.float32)
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
