"""Operators of ``hf_compat`` around products have the bits of PyTorch's, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.kernels.portable_cases import assert_same
from vllm.fork_kernels import (
    append_to_pages,
    rms_norm_rounded,
    rotate_rounded,
    silu_and_mul_rounded,
)
from vllm.fork_kernels.torch_order import rounded_layers
from vllm.hf_layers.layers.norms import Scaling, rms_norm
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
HEADS, KV_HEADS, SIZE, PLACES = 6, 2, 32, 40


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Of many magnitudes, with zeros, infinities and NaN among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x = (x * torch.exp2(torch.randint(-9, 9, shape, generator=generator))).to(dtype)
    flat = x.flatten()
    flat[3::101], flat[7::103], flat[11::107], flat[13::109] = 0.0, -0.0, torch.inf, torch.nan
    return flat.view(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [32, 20])
@pytest.mark.parametrize("num_tokens", [1, 33])
def test_rotation(dtype: torch.dtype, is_neox: bool, rotary_dim: int, num_tokens: int) -> None:
    both = numbers(num_tokens, (HEADS + KV_HEADS) * SIZE + 5, dtype=dtype)
    query, key = both[:, : HEADS * SIZE], both[:, HEADS * SIZE : -5]
    angles = torch.randn(PLACES, rotary_dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    positions = torch.arange(num_tokens) * 7 % PLACES
    expected = RotaryEmbedding.forward_static(
        positions, query, key, SIZE, rotary_dim, angles, is_neox
    )
    found = rotate_rounded(positions, query, key, angles, head_size=SIZE, is_neox=is_neox)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())  # their bits depend on the place
        assert_same(ours.nan_to_num(0.0), theirs.nan_to_num(0.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 256), (7, 100), (64, 576), (3, 1)])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-6, 0.0])
def test_norms(dtype: torch.dtype, shape: tuple[int, int], epsilon: float) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(shape, generator=generator) * torch.exp2(
        torch.randint(-9, 9, (shape[0], 1), generator=generator)
    )
    x[::5] = 0.0
    x[2::7, ::3] = torch.inf
    x, weight = x.to(dtype), torch.randn(shape[1], generator=generator).to(dtype)
    found, same = rms_norm_rounded(x, weight, epsilon)
    assert same is x
    assert_equal(found, rms_norm(x, weight, epsilon, Scaling.ROUNDED))
    residual = torch.randn(shape, generator=generator).to(dtype)
    found, total = rms_norm_rounded(x, weight, epsilon, residual)
    assert_equal(total, residual + x)
    assert_equal(found, rms_norm(residual + x, weight, epsilon, Scaling.ROUNDED))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 512), (7, 200), (64, 1536), (300, 1376), (0, 64)])
def test_gated_activations(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """As PyTorch's operators in the same shapes."""
    x = numbers(*shape, dtype=dtype)
    gate, up = (half.contiguous() for half in x.chunk(2, dim=-1))
    assert_equal(silu_and_mul_rounded(x), functional.silu(gate) * up)


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Of NaN the bits depend on the place."""
    assert torch.equal(found.isnan(), expected.isnan())
    assert_same(found.nan_to_num(0.0), expected.nan_to_num(0.0))


def test_no_tokens() -> None:
    none, angles = torch.zeros(0, 64).bfloat16(), torch.zeros(PLACES, 32).bfloat16()
    positions = torch.arange(0)
    found = rotate_rounded(positions, none, none, angles, head_size=32, is_neox=True)
    assert [one.shape for one in found] == [none.shape] * 2


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
@pytest.mark.parametrize("append", [append_to_pages, rounded_layers._append_elsewhere])
def test_keys_and_values(dtype: torch.dtype, append: Callable[..., None]) -> None:
    together = numbers(9, KV_HEADS, 2 * SIZE + 8, dtype=dtype)
    key, value = together[..., :SIZE], together[..., SIZE : 2 * SIZE + 8]
    pages = numbers(5, 4, KV_HEADS, 2 * SIZE + 8, dtype=dtype, seed=1).transpose(1, 2)
    expected = pages.clone()
    slots = torch.tensor([19, 0, 7, -1, 3, 11, 12])
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 4, :, slot % 4, :SIZE] = key[token]
            expected[slot // 4, :, slot % 4, SIZE:] = value[token]
    append(pages, key, value, slots)
    assert_same(pages, expected)


def rotation(**changes: Any) -> Callable[[], Any]:
    x, angles = torch.zeros(3, 64).bfloat16(), torch.zeros(PLACES, 32).bfloat16()
    arguments = {"positions": torch.arange(3), "query": x, "key": x, "cos_sin": angles}
    return lambda: rotate_rounded(**{**arguments, "head_size": 32, "is_neox": True, **changes})


def norm(**changes: Any) -> Callable[[], Any]:
    arguments = {"x": torch.zeros(3, 64).half(), "weight": torch.zeros(64).half(), "epsilon": 0.1}
    return lambda: rms_norm_rounded(**{**arguments, **changes})


def appending(**changes: Any) -> Callable[[], Any]:
    arguments = {
        "pages": torch.zeros(2, 2, 4, 64),
        "key": torch.zeros(3, 2, 32),
        "value": torch.zeros(3, 2, 32),
        "slots": torch.arange(3),
    }
    return lambda: append_to_pages(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            rotation(query=torch.zeros(3, 64).int()),
            "query must have dtype float32, bfloat16 or float16",
        ),
        (rotation(key=torch.zeros(2, 64).bfloat16()), "key must have one entry for each of the 3"),
        (rotation(head_size=30), "cos_sin has 32 columns for heads of 30"),
        (rotation(head_size=48), "query must have heads of 48, but has 64 columns"),
        (rotation(positions=torch.tensor([0, 40, 1])), r"positions\[1\] is 40, and cos_sin has 40"),
        (rotation(positions=torch.tensor([0, 1, -1])), r"positions\[2\] is -1"),
        (
            norm(x=torch.zeros(3, 64).int()),
            "x must have dtype float32, bfloat16 or float16, but has",
        ),
        (norm(x=torch.zeros(64, 3).half().t()), "x must be contiguous"),
        (norm(residual=torch.zeros(2, 64).half()), "residual must have the shape of x"),
        (norm(residual=torch.zeros(3, 64)), "residual must have dtype float16, but has float32"),
        (partial(silu_and_mul_rounded, torch.zeros(3, 5).half()), "even number of columns, but ha"),
        (
            partial(silu_and_mul_rounded, torch.zeros(3, 6).int()),
            "x must have dtype float32, bfloat16",
        ),
        (norm(weight=torch.zeros(64)), "weight must have dtype float16, but has float32"),
        (norm(weight=torch.zeros(63).half()), "weight must have one entry for each of the 64"),
        (appending(key=torch.zeros(3, 2, 32).half()), "key must have dtype float32, but has float"),
        (appending(value=torch.zeros(2, 2, 32)), "value must have 3 tokens of 2 heads, but has 2"),
        (appending(value=torch.zeros(3, 2, 16)), "a key of 32 and a value of 16 do not fill 64"),
        (appending(slots=torch.tensor([0, 8, 1])), r"slots\[1\] is 8, and pages have 8"),
        (appending(slots=torch.tensor([0, -2, 1])), r"slots\[1\] is -2"),
    ],
)
def test_errors(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        call()


def test_opcheck() -> None:
    x, angles = torch.ones(3, 64).bfloat16(), torch.zeros(PLACES, 32).bfloat16()
    ops = torch.ops.vllm_fork
    torch.library.opcheck(ops.rotate_rounded.default, (torch.arange(3), x, x, angles, SIZE, True))
    torch.library.opcheck(ops.rms_norm_rounded.default, (x, None, x[0], 1e-5))
    torch.library.opcheck(ops.rms_norm_rounded.default, (x, x.clone(), x[0], 1e-5))
    torch.library.opcheck(ops.silu_and_mul_rounded.default, (x,))
    row = torch.zeros(3, 2, 32)
    torch.library.opcheck(
        ops.append_to_pages.default, (torch.zeros(2, 2, 4, 64), row, row, torch.arange(3))
    )
