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

LEAST_SCORE = np.float32(2.0**-32)
LEAST_SUM = np.float32(2.0**-66)
LEAST_PRODUCT = np.float32(2.0**-102)


def route(
    logits: Floats,
    count: int,
    *,
    is_renormalised: bool,
    scoring: str = "softmax",
    corrections: Floats | None = None,
    groups: tuple[int, int] = (1, 1),
    factor: float = 1.0,
) -> tuple[Floats, list[int]]:
    """The weights and indices of the experts of one token.

    `groups` are how many there are, and how many are chosen.
    """
    with np.errstate(invalid="ignore"):
        score = FUNCTIONS["sigmoid"] if scoring == "sigmoid" else _softmax
        scores = _without_least(score(logits))
        ranked = _in_best_groups(
            logits if corrections is None else scores + corrections,
            groups,
            best=1 if corrections is None else 2,
        )
        chosen = [int(expert) for expert in ranking(ranked)[:count]]
        if scoring == "softmax" and is_renormalised and corrections is None:
            weights = _without_least(exp(logits[chosen] - logits[chosen[0]]))
            weights = weights / _sum(weights)
        elif is_renormalised:
            weights = scores[chosen] / np.maximum(_sum(scores[chosen]), LEAST_SUM)
        else:
            weights = scores[chosen]
    return weights * np.float32(factor), chosen


def _in_best_groups(values: Floats, groups: tuple[int, int], best: int) -> Floats:
    number, chosen = groups
    if chosen == number:
        return values
    members = values.reshape(number, -1)
    of_groups = []
    for own in members:
        first = own[ranking(own)[:best]]
        of_groups.append(first[0] if best == 1 else first[0] + first[1])
    kept = ranking(np.array(of_groups, dtype=np.float32))[:chosen]
    result = np.full_like(members, -np.inf)
    result[kept] = members[kept]
    return result.reshape(-1)


def _softmax(logits: Floats) -> Floats:
    return exp(log_softmax(logits))


def _sum(values: Floats) -> np.float32:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _without_least(values: Floats) -> Floats:
    return np.where(values < LEAST_SCORE, np.float32(0), values)


def mixture(
    x: Floats,
    weights: Floats,
    experts: list[int],
    gate_up: Floats,
    down: Floats,
    function: str,
    dtype: str,
    biases: tuple[Floats, Floats] | None = None,
) -> Floats:
    """The result of one token x [hidden_size], in the numbers of a format.

    `gate_up` is [experts, 2 * intermediate_size, hidden_size], `down` the other way round.
    `biases` are of both. The function "clamped" is gpt-oss's, whose gates and ups take turns.
    """
    total = None
    for weight, expert in zip(weights, experts, strict=True):
        own = (None, None) if biases is None else (biases[0][expert], biases[1][expert])
        computed = output(x, gate_up[expert], down[expert], function, dtype, own[0])
        product = weight * (computed if own[1] is None else computed + own[1])
        product = np.where(np.abs(product) < LEAST_PRODUCT, np.float32(0), product)
        total = product if total is None else total + product
    assert total is not None
    return as_format(total, dtype)


def output(
    x: Floats, gate_up: Floats, down: Floats, function: str, dtype: str, bias: Floats | None = None
) -> Floats:
    both = _product(x, gate_up, dtype, bias)
    if function == "clamped":
        opened = _clamped(both[::2], both[1::2])
    else:
        gate, up = np.split(both, 2)
        opened = FUNCTIONS[function](gate) * up
    return _product(as_format(opened, dtype), down, "float32")


def _clamped(gate: Floats, up: Floats) -> Floats:
    gate = np.minimum(gate, np.float32(7))
    up = np.maximum(np.minimum(up, np.float32(7)), np.float32(-7))
    product = (up + np.float32(1)) * FUNCTIONS["quick_gelu"](gate)
    return np.where(np.abs(product) < LEAST_PRODUCT, np.float32(0), product)


def _product(x: Floats, weight: Floats, dtype: str, bias: Floats | None = None) -> Floats:
    exponents = exponents_of(statistics_of(weight))
    return _numbers(product_bits(x[None], weight, exponents, bias, dtype)[0], dtype)


def as_format(x: Floats, dtype: str) -> Floats:
    """Numbers rounded to a format."""
    return _numbers(rounded_bits(np.ascontiguousarray(x), dtype), dtype)


def _numbers(bits: NDArray[np.uint16] | NDArray[np.uint32], dtype: str) -> Floats:
    if dtype == "float32":
        return bits.view(np.float32)
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
