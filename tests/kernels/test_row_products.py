"""``row_products`` has the bits of ``functional.linear`` of each row by itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from vllm.fork_ops import has_row_products, row_products

pytestmark = pytest.mark.skipif(
    not torch.cpu._is_avx512_supported(), reason="the operator is there with AVX-512 only"
)
SHAPES = ((1, 64), (33, 64), (128, 256), (320, 1024), (700, 4096), (4096, 128))
# PyTorch takes oneDNN's product of a row where the CPU has instructions for bfloat16.
PYTORCH_HAS_THE_ORDER = (
    torch.backends.cpu.get_cpu_capability() == "AVX512"
    and not torch.cpu._is_avx512_bf16_supported()
)


def row_by_row(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.cat([functional.linear(row, weight, bias) for row in x.split(1)])


def wide_ranging(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Normal numbers of all magnitudes, zeros and denormals; the last rows cancel almost wholly."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-30, 20, (rows, columns), generator=generator)
    x = torch.randn(rows, columns, generator=generator) * torch.exp2(exponents)
    x[:, ::7] = 0.0
    x[:, 1::13] = torch.finfo(dtype).smallest_normal / 2
    half = columns // 2
    x[-1, :half] = -x[-1, half : 2 * half]
    return x.to(dtype)


def in_order(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The operator's order, spelt out: 64 sums of a row, which are folded by halves.

    The product of two bfloat16 numbers is exact in float32, so a sum rounds once.
    """
    sums = torch.zeros(x.shape[0], weight.shape[0], 64)
    for first in range(0, x.shape[1], 64):
        part = slice(first, first + 64)
        sums += x[:, None, part].float() * weight[None, :, part].float()
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    offset = 0.0 if bias is None else bias.float()
    return (sums[..., 0] + offset).to(torch.bfloat16)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 67])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_bits(shape: tuple[int, int], num_rows: int, has_bias: bool) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    bias = wide_ranging(1, shape[0], torch.bfloat16)[0] if has_bias else None
    x = wide_ranging(num_rows, shape[1], torch.bfloat16)
    found = row_products(x, weight, bias)
    assert torch.equal(found, in_order(x, weight, bias))
    if PYTORCH_HAS_THE_ORDER:
        assert torch.equal(found, row_by_row(x, weight, bias))


def test_rows_together_differ() -> None:
    """The test above would pass one product of all rows if PyTorch added alike."""
    weight = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert not torch.equal(functional.linear(x, weight), row_products(x, weight))


@pytest.mark.parametrize(
    ("dtype", "columns"), [(torch.bfloat16, 96), (torch.float16, 64), (torch.float32, 64)], ids=str
)
def test_other_weights(dtype: torch.dtype, columns: int) -> None:
    assert not has_row_products(torch.zeros(40, columns, dtype=dtype))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, w, b: (x.float(), w, b), "x must have dtype bfloat16, but has float32"),
        (lambda x, w, b: (x[0], w, b), r"x must have 2 dimension\(s\), but has 1"),
        (lambda x, w, b: (x, w.t(), b), "weight must be contiguous"),
        (lambda x, w, b: (x, w[:, :64].contiguous(), b), "weight must have 128 columns"),
        (lambda x, w, b: (x[:, :96].contiguous(), w[:, :96].contiguous(), b), "multiple of 64"),
        (lambda x, w, b: (x, w, b[:3]), "bias must have one entry for each of the 8 rows"),
        (lambda x, w, b: (x, w, b.float()), "bias must have dtype bfloat16"),
    ],
)
def test_argument_errors(change: Callable[..., Any], sentence: str) -> None:
    x, weight, bias = (torch.zeros(s).bfloat16() for s in ((4, 128), (8, 128), (8,)))
    with pytest.raises(RuntimeError, match=f"^row_products: .*{sentence}"):
        torch.ops.vllm_fork.row_products(*change(x, weight, bias))
