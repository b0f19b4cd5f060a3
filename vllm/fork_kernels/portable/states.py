"""Layers with states, with portable bits: causal convolution, Mamba2, gated delta rule, gated norm.

Specified in ``docs/numerics/states.md``: each is the recurrence itself, one token after the other.
So results do not depend on the batch, on the chunks of a prompt, or on where a state was kept.
"""

import math

import torch

from vllm.fork_kernels.operators import specified
from vllm.fork_kernels.portable.functions import Function

__all__ = [
    "portable_causal_conv",
    "portable_gated_delta_rule",
    "portable_gated_rms_norm",
    "portable_mamba2_scan",
]


@specified
def _portable_causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    has_state: torch.Tensor,
    has_silu: bool,
) -> torch.Tensor:
    return x.new_empty(x.shape)


@specified
def _portable_mamba2_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a_log: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor | None,
    dt_bias: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    has_state: torch.Tensor,
    smallest_dt: float,
    largest_dt: float,
) -> torch.Tensor:
    return x.new_empty(x.shape)


@specified
def _portable_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    has_state: torch.Tensor,
    scale: float,
    doubles_beta: bool,
) -> torch.Tensor:
    return v.new_empty(v.shape)


@specified
def _portable_gated_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    group_size: int,
    norm_before_gate: bool,
    activation: str,
) -> torch.Tensor:
    return x.new_empty(x.shape)


def portable_causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    has_state: torch.Tensor,
    *,
    activation: str | None = "silu",
) -> torch.Tensor:
    """Convolve each channel with its own weights, over a token and those before it.

    The depthwise ``conv1d`` of Mamba (Gu and Dao, 2023), with its activation.

    Args:
        x: float32, bfloat16 or float16 [num_tokens, channels], last dimension contiguous, on CPU:
            the tokens of all requests, one request after the other.
        weight: [channels, width], any of these dtypes, contiguous: the oldest token's first.
        bias: [channels], likewise, or None.
        states: of the dtype of x, [num_blocks, width - 1, channels], last dimension contiguous: the
            last inputs of requests, the oldest first. Those of `slots` are changed in place.
        slots: int32 [num_requests], contiguous: each request's block of states.
        query_start_loc: int32 [num_requests + 1], contiguous: where each request's tokens begin,
            from 0 on, and where the last one's end.
        has_state: bool [num_requests], contiguous: False for a request that begins, whose state is
            zeros whatever its block holds.
        activation: "silu" or None.

    Returns:
        [num_tokens, channels] in the dtype of x; zeros for tokens behind the last request's.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, a slot is outside of states, or two
            requests have one; nothing is changed then. x is on a GPU.
        ValueError: there is no such activation.
    """
    if activation not in ("silu", None):
        raise ValueError(f"activation must be 'silu' or None, but is {activation!r}")
    _refuse_gpus("portable_causal_conv", x)
    requests = (states, slots, query_start_loc, has_state)
    return _portable_causal_conv(x, weight, bias, *requests, activation is not None)


def portable_mamba2_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a_log: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor | None,
    dt_bias: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    has_state: torch.Tensor,
    *,
    dt_limits: tuple[float, float] = (0.0, math.inf),
) -> torch.Tensor:
    """Go through Mamba2's recurrence (Dao and Gu, 2024), token by token.

    With ``step = clamp(softplus(dt + dt_bias), *dt_limits)`` a head's state decays by
    ``exp(-exp(a_log) * step)`` and gains b times ``step * x``; the result is its product with c,
    plus ``d * x``.

    Args:
        x: float32, bfloat16 or float16 [num_tokens, heads, head_dim], last dimension contiguous, on
            CPU: the tokens of all requests, one request after the other.
        dt: [num_tokens, heads], likewise; the dtypes of these inputs may differ.
        a_log: [heads], any of these dtypes, contiguous: ``A_log`` of a checkpoint.
        b: [num_tokens, groups, state_size], as x; heads is a multiple of groups.
        c: likewise.
        d: [heads], as a_log, or None for zeros.
        dt_bias: [heads], as a_log.
        states: float32 [num_blocks, heads, state_size, head_dim], last dimension contiguous. Those
            of `slots` are changed in place.
        slots: as `portable_causal_conv` takes them.
        query_start_loc: likewise.
        has_state: likewise.
        dt_limits: the least and the largest step.

    Returns:
        Like x; zeros for tokens behind the last request's.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, a slot is outside of states, or two
            requests have one; nothing is changed then. x is on a GPU.
    """
    _refuse_gpus("portable_mamba2_scan", x)
    requests = (states, slots, query_start_loc, has_state)
    return _portable_mamba2_scan(x, dt, a_log, b, c, d, dt_bias, *requests, *dt_limits)


def portable_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    has_state: torch.Tensor,
    *,
    scale: float | None = None,
    doubles_beta: bool = False,
) -> torch.Tensor:
    """Go through the gated delta rule (Yang et al., 2024), token by token.

    Queries and keys are divided by their lengths. A head's state decays by
    ``exp(-exp(a_log) * softplus(a + dt_bias))``; what it then holds for k comes nearer to v by
    ``sigmoid(b)`` of the difference; the result is its product with q. The function of Transformers
    is ``torch_recurrent_gated_delta_rule``, with ``use_qk_l2norm_in_kernel``.

    Args:
        q: float32, bfloat16 or float16 [num_tokens, k_heads, k_dim], last dimension contiguous, on
            CPU: the tokens of all requests, one request after the other.
        k: likewise; the dtypes of these inputs may differ.
        v: [num_tokens, v_heads, v_dim], likewise; v_heads is a multiple of k_heads, and each head
            of q and k serves as many in a row.
        a: [num_tokens, v_heads], likewise: what the decay comes from.
        b: likewise: what the strength of the update comes from.
        a_log: [v_heads], any of these dtypes, contiguous: ``A_log`` of a checkpoint.
        dt_bias: likewise.
        states: float32 [num_blocks, v_heads, k_dim, v_dim], last dimension contiguous. Those of
            `slots` are changed in place.
        slots: as `portable_causal_conv` takes them.
        query_start_loc: likewise.
        has_state: likewise.
        scale: multiplies queries, by default 1 / sqrt(k_dim).
        doubles_beta: updates have the strength ``2 * sigmoid(b)``, as with OLMo hybrid's
            ``linear_allow_neg_eigval``.

    Returns:
        Like v; zeros for tokens behind the last request's.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, a slot is outside of states, or two
            requests have one; nothing is changed then. v is on a GPU.
    """
    _refuse_gpus("portable_gated_delta_rule", v)
    scale = 1.0 / math.sqrt(k.shape[-1]) if scale is None else scale
    requests = (states, slots, query_start_loc, has_state)
    return _portable_gated_delta_rule(q, k, v, a, b, a_log, dt_bias, *requests, scale, doubles_beta)


def portable_gated_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float = 1e-6,
    *,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    activation: Function | str = Function.SILU,
) -> torch.Tensor:
    """Normalise groups of columns, and multiply with an activated gate before or after that.

    Args:
        x: float32, bfloat16 or float16 [..., columns] of 2 or 3 dimensions, last dimension
            contiguous, on CPU.
        gate: of the shape of x, any of these dtypes, likewise.
        weight: [columns], any of these dtypes, contiguous; None for no norm at all, which leaves
            ``x * activation(gate)``.
        epsilon: is added to the mean square of a group.
        group_size: the columns of a group; by default all.
        norm_before_gate: the gate comes last, as in Qwen3-Next, and not first, as in Mamba2.
        activation: of the gate.

    Returns:
        A new tensor of the shape and dtype of x, rounded once.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, epsilon is negative, or there is no
            such activation. x is on a GPU.
    """
    _refuse_gpus("portable_gated_rms_norm", x)
    size = x.shape[-1] if group_size is None else group_size
    return _portable_gated_rms_norm(x, gate, weight, epsilon, size, norm_before_gate, activation)


def _refuse_gpus(name: str, x: torch.Tensor) -> None:
    if x.device.type == "cuda":
        raise RuntimeError(
            f"{name}: layers with states have portable bits on CPUs alone, but this tensor is on "
            f"{x.device}."
        )
