"""How far the recurrences are from exact ones, beside Transformers' functions in float32."""

from __future__ import annotations

import numpy as np
import torch
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from tests.kernels.portable_cases import every_number
from vllm.fork_kernels.portable.states import (
    portable_causal_conv,
    portable_gated_delta_rule,
    portable_gated_rms_norm,
    portable_mamba2_scan,
)

TOKENS, HEADS, ROWS, COLUMNS = 512, 4, 128, 64
softplus = torch.nn.functional.softplus


def normal(*shape: int, seed: int) -> torch.Tensor:
    """In bfloat16, widened."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).bfloat16().float()


def distance(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact).norm() / exact.norm())


def one_request(state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Whose tokens are all there are."""
    starts = torch.tensor([0, TOKENS], dtype=torch.int32)
    return state, torch.zeros(1, dtype=torch.int32), starts, torch.tensor([False])


def test_softplus() -> None:
    """As the step of a head whose b, c and x are 1."""
    dt = torch.cat([every_number(torch.float32), every_number(torch.bfloat16).float()])
    dt = dt[dt.abs() < 1e30]
    ones = torch.ones(1, len(dt), 1)
    zeros, one = torch.zeros(len(dt)), torch.ones(1, 1, 1)
    starts, new = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([False])
    states, slots = torch.zeros(1, len(dt), 1, 1), torch.zeros(1, dtype=torch.int32)
    arguments = (ones, dt[None], zeros, one, one, None, zeros, states, slots, starts, new)
    actual = portable_mamba2_scan(*arguments).view(-1).numpy()
    x = dt.numpy().astype(np.longdouble)
    exact = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    unit = np.spacing(exact.astype(np.float32))
    assert (np.abs(actual - exact) / unit).max() < 2.0


def exact_mamba2(
    x: torch.Tensor,
    dt: torch.Tensor,
    a_log: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    dt_bias: torch.Tensor,
) -> torch.Tensor:
    x, dt, a_log, b, c, d, dt_bias = (one.double() for one in (x, dt, a_log, b, c, d, dt_bias))
    state = torch.zeros(HEADS, ROWS, COLUMNS, dtype=torch.float64)
    results = []
    for t in range(TOKENS):
        step = softplus(dt[t] + dt_bias)
        state = state * (-a_log.exp() * step).exp()[:, None, None]
        key, query = (one[t].repeat_interleave(HEADS // 2, 0)[..., None] for one in (b, c))
        state = state + key * (step[:, None] * x[t])[:, None]
        results.append((state * query).sum(1) + d[:, None] * x[t])
    return torch.stack(results)


def test_mamba2() -> None:
    x, dt = normal(TOKENS, HEADS, COLUMNS, seed=1), normal(TOKENS, HEADS, seed=2)
    b, c = (normal(TOKENS, 2, ROWS, seed=seed) for seed in (3, 4))
    a_log, d, dt_bias = (normal(HEADS, seed=seed) for seed in (5, 6, 7))
    arguments = (x, dt, a_log, b, c, d, dt_bias)
    exact = exact_mamba2(*arguments)
    state = torch.zeros(1, HEADS, ROWS, COLUMNS)
    ours = distance(portable_mamba2_scan(*arguments, *one_request(state)), exact)
    chunks = mamba2_chunk_scan(
        *(x[None], dt[None], -a_log.exp(), b[None], c[None], 256, d, dt_bias), dt_softplus=True
    )
    theirs = distance(chunks[0], exact)
    rounded = portable_mamba2_scan(x.bfloat16(), *arguments[1:], *one_request(state))
    assert ours < 1.2 * 2.1e-7
    assert ours < 3 * theirs
    assert distance(rounded, exact) < 1.02 * distance(exact.bfloat16(), exact)


def exact_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    q, k = (one * torch.rsqrt(one.square().sum(-1, keepdim=True) + 1e-6) for one in (q, k))
    q, k = (one.repeat_interleave(HEADS // 2, 1) for one in (q * ROWS**-0.5, k))
    state = torch.zeros(HEADS, ROWS, COLUMNS, dtype=torch.float64)
    results = []
    for t in range(TOKENS):
        state = state * g[t].exp()[:, None, None]
        w = (v[t] - (state * k[t][..., None]).sum(1)) * beta[t][:, None]
        state = state + k[t][..., None] * w[:, None]
        results.append((state * q[t][..., None]).sum(1))
    return torch.stack(results)


def test_delta_rule() -> None:
    q, k = (normal(TOKENS, 2, ROWS, seed=seed) for seed in (11, 12))
    v = normal(TOKENS, HEADS, COLUMNS, seed=13)
    a, b = (normal(TOKENS, HEADS, seed=seed) for seed in (14, 15))
    a_log, dt_bias = (normal(HEADS, seed=seed) for seed in (16, 17))
    g, beta = -a_log.double().exp() * softplus(a.double() + dt_bias.double()), b.double().sigmoid()
    exact = exact_delta_rule(q.double(), k.double(), v.double(), g, beta)
    state = torch.zeros(1, HEADS, ROWS, COLUMNS)
    arguments = (a, b, a_log, dt_bias, *one_request(state))
    ours = distance(portable_gated_delta_rule(q, k, v, *arguments), exact)
    heads = (one.repeat_interleave(HEADS // 2, 1)[None] for one in (q, k))
    g32 = -a_log.exp() * softplus(a + dt_bias)
    result, _ = torch_recurrent_gated_delta_rule(
        *heads, v[None], g=g32[None], beta=b.sigmoid()[None], use_qk_l2norm_in_kernel=True
    )
    theirs = distance(result[0], exact)
    rounded = portable_gated_delta_rule(q, k, v.bfloat16(), *arguments)
    assert ours < 1.2 * 2.3e-7
    assert ours < 2 * theirs
    assert distance(rounded, exact) < 1.02 * distance(exact.bfloat16(), exact)


def test_causal_conv() -> None:
    x, weight, bias = normal(TOKENS, 96, seed=21), normal(96, 4, seed=22), normal(96, seed=23)
    padded = torch.nn.functional.pad(x.double().t(), (3, 0))
    product = torch.nn.functional.conv1d(
        padded[None], weight.double()[:, None], bias.double(), groups=96
    )
    exact = torch.nn.functional.silu(product[0].t())
    ours = portable_causal_conv(x, weight, bias, *one_request(torch.zeros(1, 3, 96)))
    assert distance(ours, exact) < 1.2 * 4.3e-8


def test_gated_norm() -> None:
    x, gate, weight = (normal(TOKENS, 256, seed=seed) for seed in (31, 32, 33))
    weight = weight[0]
    z = torch.nn.functional.silu(gate.double())
    norm = torch.nn.functional.rms_norm
    first = norm((x * z).view(TOKENS, 2, 128), (128,), None, 1e-6).view(TOKENS, 256) * weight
    ours = portable_gated_rms_norm(x, gate, weight, group_size=128)
    assert distance(ours, first) < 1.2 * 7.9e-8
    last = norm(x.double(), (256,), weight.double(), 1e-6) * z
    ours = portable_gated_rms_norm(x, gate, weight, norm_before_gate=True)
    assert distance(ours, last) < 1.2 * 7.9e-8
