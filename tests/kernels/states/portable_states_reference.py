"""docs/numerics/states.md in NumPy: slow, plain, and written from that page alone.

Everything is of one request, in float32, from its state on; functions return results and the state
behind them.
"""

import numpy as np
from numpy.typing import NDArray

from tests.kernels.portable_reference import (
    FUNCTIONS,
    Floats,
    exp,
    fma,
    lane_sum,
    norm,
    number,
    sigmoid,
    silu,
    softplus,
)

ZERO, ONE = np.float32(0), np.float32(1)
Recurrence = tuple[Floats, Floats]


def causal_conv(
    x: Floats, weight: Floats, bias: Floats | None, state: Floats, *, has_silu: bool
) -> Recurrence:
    """x [tokens, channels], weight [channels, width], state [width - 1, channels]."""
    inputs = np.concatenate([state, x])
    results = np.empty_like(x)
    for t in range(len(x)):
        s = np.zeros_like(x[t]) if bias is None else bias
        for j in range(weight.shape[1]):
            s = fma(weight[:, j], inputs[t + j], s)
        results[t] = silu(s) if has_silu else s
    return results, inputs[len(x) :]


def decay(exponent: Floats) -> Floats:
    d = exp(exponent)
    return np.where(d < np.float32(2.0**-64), ZERO, d)


def rate(a_log: Floats) -> Floats:
    return -exp(a_log)


def step(state: Floats, d: Floats, k: Floats, w: Floats, q: Floats) -> Recurrence:
    """State [heads, rows, columns], d [heads], k and q [heads, rows], w [heads, columns]."""
    kept = state * d[:, None, None]
    state = fma(k[:, :, None], w[:, None, :], kept)
    return chain(q, state), state


def chain(factors: Floats, state: Floats) -> Floats:
    """The sums over rows, in order."""
    o = np.zeros((state.shape[0], state.shape[2]), dtype=np.float32)
    for i in range(state.shape[1]):
        o = fma(factors[:, i, None], state[:, i], o)
    return o


def mamba2(
    x: Floats,
    dt: Floats,
    a_log: Floats,
    b: Floats,
    c: Floats,
    d: Floats | None,
    dt_bias: Floats,
    state: Floats,
    limits: tuple[float, float],
) -> Recurrence:
    """x [tokens, heads, columns], dt [tokens, heads], b and c [tokens, groups, rows]."""
    heads = x.shape[1]
    low, high = (np.float32(limit) for limit in limits)
    group = np.arange(heads) // (heads // b.shape[1])
    results = np.empty_like(x)
    for t in range(len(x)):
        p = softplus(dt[t] + dt_bias)
        p = np.where(p < low, low, p)
        p = np.where(p > high, high, p)
        w = p[:, None] * x[t]
        o, state = step(state, decay(p * rate(a_log)), b[t, group], w, c[t, group])
        results[t] = o if d is None else fma(d[:, None], x[t], o)
    return results, state


def delta_rule(
    q: Floats,
    k: Floats,
    v: Floats,
    a: Floats,
    b: Floats,
    a_log: Floats,
    dt_bias: Floats,
    state: Floats,
    *,
    scale: float | None,
    doubles_beta: bool,
) -> Recurrence:
    """q, k [tokens, heads of keys, rows], v [tokens, heads, columns], a, b [tokens, heads]."""
    heads = v.shape[1]
    f = np.float32(1 / np.sqrt(np.float64(k.shape[2])) if scale is None else scale)
    of = np.arange(heads) // (heads // k.shape[1])
    results = np.empty_like(v)
    for t in range(len(v)):
        keys = np.stack([one * reciprocal_length(one) for one in k[t]])[of]
        queries = np.stack([one * (reciprocal_length(one) * f) for one in q[t]])[of]
        d = decay(softplus(a[t] + dt_bias) * rate(a_log))
        beta = sigmoid(b[t]) * np.float32(2 if doubles_beta else 1)
        m = chain(keys, state)
        w = fma(-d[:, None], m, v[t]) * beta[:, None]
        results[t], state = step(state, d, keys, w, queries)
    return results, state


def reciprocal_length(x: Floats) -> np.float32:
    return np.float32(ONE / np.sqrt(lane_sum(x, squares=True) + number("0x1.0c6f7ap-20")))


def gated_norm(
    x: Floats,
    gate: Floats,
    weight: Floats | None,
    epsilon: float,
    group: int,
    *,
    norm_before_gate: bool,
    activation: str,
) -> Floats:
    """One row."""
    z = FUNCTIONS[activation](gate)
    if weight is None:
        return x * z
    if norm_before_gate:
        return in_groups(x, weight, epsilon, group) * z
    return in_groups(x * z, weight, epsilon, group)


def in_groups(x: Floats, weight: Floats, epsilon: float, group: int) -> Floats:
    pieces: list[NDArray[np.float32]] = [
        norm(x[j : j + group], weight[j : j + group], None, epsilon, 0.0, is_centred=False)
        for j in range(0, len(x), group)
    ]
    return np.concatenate(pieces)
