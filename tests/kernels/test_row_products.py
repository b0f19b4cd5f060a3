"""``linear_by_row`` has the bits of ``functional.linear`` of each row by itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from vllm.fork_ops import linear_by_row, row_products

SHAPES = ((1, 64), (33, 64), (128, 256), (320, 1024), (700, 4096), (4096, 128))


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


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 64, 131])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_bits(shape: tuple[int, int], num_rows: int, has_bias: bool) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    bias = wide_ranging(1, shape[0], torch.bfloat16)[0] if has_bias else None
    x = wide_ranging(num_rows, shape[1], torch.bfloat16)
    assert torch.equal(linear_by_row(weight)(x, weight, bias), row_by_row(x, weight, bias))


def test_rows_together_differ() -> None:
    """The test above would pass one product of all rows if PyTorch added alike."""
    weight = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(2)).bfloat16()
    together = functional.linear(x, weight)
    assert not torch.equal(together, row_by_row(x, weight))
    assert torch.equal(linear_by_row(weight)(x, weight, None), row_by_row(x, weight))


@pytest.mark.skipif(row_products._row_products is None, reason="no AVX-512")
def test_the_operator_is_what_is_used() -> None:
    """Not the slow way, where PyTorch takes the kernel whose order the operator has."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or torch.cpu._is_avx512_bf16_supported():
        pytest.skip("PyTorch multiplies a row by another kernel here")
    assert linear_by_row(torch.ones(64, 128).bfloat16()) is row_products._with_operator


@pytest.mark.parametrize(
    ("dtype", "columns"), [(torch.bfloat16, 96), (torch.float16, 64), (torch.float32, 64)], ids=str
)
def test_other_weights_go_one_by_one(dtype: torch.dtype, columns: int) -> None:
    weight = torch.randn(40, columns, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(2)).to(dtype)
    by_row = linear_by_row(weight)
    assert by_row is row_products._one_by_one
    assert torch.equal(by_row(x, weight, None), row_by_row(x, weight))
    assert by_row(x[:0], weight, None).shape == (0, 40)


def test_an_operator_with_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return row_by_row(x, weight, bias) + 1

    monkeypatch.setattr(row_products, "_row_products", other)
    assert linear_by_row(torch.ones(64, 128).bfloat16()) is row_products._one_by_one


@pytest.mark.skipif(row_products._row_products is None, reason="no AVX-512")
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
