"""``row_products`` has the bits of ``functional.linear`` of each row by itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.instruction_sets import NEEDS_AVX512
from vllm.fork_kernels import row_orders, row_products

pytestmark = NEEDS_AVX512
HAS_CHAINS = torch.cpu._is_avx512_bf16_supported()
NEEDS_CHAINS = pytest.mark.skipif(not HAS_CHAINS, reason="oneDNN's order needs AVX512_BF16")
ORDERS = [0, *(pytest.param(block, marks=NEEDS_CHAINS) for block in (256, 512, 1024, 2048))]
SHAPES = ((1, 64), (33, 64), (128, 256), (320, 1024), (700, 4096), (4096, 128))
ODD_COLUMNS = (3, 16, 31, 63, 80, 100, 688, 1001)
# PyTorch takes oneDNN's product of a row where the CPU has instructions for bfloat16.
PYTORCH_HAS_SUMS = torch.backends.cpu.get_cpu_capability() == "AVX512" and not HAS_CHAINS


def row_by_row(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.cat([functional.linear(row, weight, bias) for row in x.split(1)])


def wide_ranging(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Numbers of many magnitudes, and zeros; the last row cancels almost wholly.

    All their products and sums are exact in float64, so that a sum is rounded once to float32.
    """
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-10, 10, (rows, columns), generator=generator)
    x = torch.randn(rows, columns, generator=generator).clamp(-3.9, 3.9)
    x = (x.sign() * x.abs().clamp(min=2**-6)) * torch.exp2(exponents)
    x[:, ::7] = 0.0
    half = columns // 2
    x[-1, :half] = -x[-1, half : 2 * half]
    return x.bfloat16()


def denormal(x: torch.Tensor) -> torch.Tensor:
    """Return x with denormal numbers in some places."""
    x = x.clone()
    x[:, 1::13] = torch.finfo(torch.bfloat16).smallest_normal / 2
    return x


def added_in_sums(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """ATen's order, spelt out: 64 sums of a row, folded by halves; eight of what is left over
    in sixteens; and one after the other.

    The product of two such numbers is exact in float32, so a sum rounds once.
    """
    columns = x.shape[1]
    whole, sixteens = columns // 64 * 64, columns // 16 * 16
    total = folded(x[:, :whole], weight[:, :whole], 64)
    if sixteens > whole:
        total += folded(x[:, whole:sixteens], weight[:, whole:sixteens], 8)
    for i in range(sixteens, columns):
        total += x[:, i, None].float() * weight[None, :, i].float()
    return total


def folded(x: torch.Tensor, weight: torch.Tensor, lanes: int) -> torch.Tensor:
    sums = torch.zeros(x.shape[0], weight.shape[0], lanes)
    for first in range(0, x.shape[1], lanes):
        part = slice(first, first + lanes)
        sums += x[:, None, part].float() * weight[None, :, part].float()
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0]


def added_in_chains(x: torch.Tensor, weight: torch.Tensor, block: int) -> torch.Tensor:
    """oneDNN's order, spelt out: pairs of a block, the second of a pair first; then the blocks."""
    total = torch.zeros(x.shape[0], weight.shape[0])
    for first in range(0, x.shape[1], block):
        chain = torch.zeros_like(total)
        for i in range(first, min(x.shape[1], first + block)):
            term = x[:, i ^ 1, None].double() * weight[None, :, i ^ 1].double()
            chain = (chain.double() + term).float()
        total += chain
    return total


def in_order(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: int
) -> torch.Tensor:
    sums = added_in_chains(x, weight, order) if order else added_in_sums(x, weight)
    return (sums + (0.0 if bias is None else bias.float())).to(x.dtype)


@pytest.mark.parametrize("num_rows", [1, 3, 7, 8, 17, 67])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_bits(shape: tuple[int, int], num_rows: int, has_bias: bool, order: int) -> None:
    weight = wide_ranging(*shape, seed=1)
    bias = wide_ranging(1, shape[0])[0] if has_bias else None
    x = wide_ranging(num_rows, shape[1])
    assert torch.equal(row_products(x, weight, bias, order), in_order(x, weight, bias, order))


@pytest.mark.parametrize("columns", [64, 256, *ODD_COLUMNS])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_pytorchs_own_order(columns: int, has_bias: bool, dtype: torch.dtype) -> None:
    """Without oneDNN, PyTorch takes its own product of a row for both dtypes."""
    # Numbers of float16 that cancel: each has few bits, for sums to fit it.
    weight = (wide_ranging(45, columns, seed=1) * 2**-4).to(dtype)
    x = (wide_ranging(7, columns) * 2**-4).to(dtype)
    bias = wide_ranging(1, 45)[0].to(dtype) if has_bias else None
    with torch.backends.mkldnn.flags(enabled=False):
        expected = row_by_row(x, weight, bias)
    assert expected.isfinite().all()
    assert torch.equal(row_products(x, weight, bias, 0), expected)
    assert torch.equal(in_order(x, weight, bias, 0), expected)


@pytest.mark.skipif(torch.cpu._is_amx_tile_supported(), reason="oneDNN may add in tiles there")
@pytest.mark.parametrize("num_rows", [1, 5, 33])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_one_order_is_pytorchs(shape: tuple[int, int], num_rows: int, has_bias: bool) -> None:
    weight = denormal(wide_ranging(*shape, seed=1))
    bias = wide_ranging(1, shape[0])[0] if has_bias else None
    x = denormal(wide_ranging(num_rows, shape[1]))
    expected = row_by_row(x, weight, bias)
    equal = [torch.equal(row_products(x, weight, bias, n), expected) for n in row_orders(weight)]
    assert any(equal)
    if PYTORCH_HAS_SUMS:
        assert equal[0]


@pytest.mark.parametrize("columns", [2, 50, 1026])
@NEEDS_CHAINS
def test_chains_of_any_pairs(columns: int) -> None:
    weight, x = wide_ranging(29, columns, seed=1), wide_ranging(18, columns)
    assert torch.equal(row_products(x, weight, None, 512), in_order(x, weight, None, 512))


@NEEDS_CHAINS
@pytest.mark.parametrize("num_rows", [1, 3, 8, 9, 67])
@pytest.mark.parametrize("shape", [*SHAPES[1:], (31, 2), (257, 50), (96, 1026)], ids=str)
@pytest.mark.parametrize("order", [256, 512, 1024, 2048])
def test_bits_of_transposed_weights(shape: tuple[int, int], num_rows: int, order: int) -> None:
    weight, x = denormal(wide_ranging(*shape, seed=1)), denormal(wide_ranging(num_rows, shape[1]))
    transposed = weight.t().contiguous().t()
    expected = in_order(x, weight, None, order)
    assert torch.equal(row_products(x, transposed, None, order), expected)
    assert row_orders(transposed) == (512, 1024, 256, 2048)


@NEEDS_CHAINS
def test_orders_differ() -> None:
    """The tests above would pass one order in place of another if all added alike."""
    weight, x = wide_ranging(512, 4096, seed=1), wide_ranging(64, 4096)
    found = [row_products(x, weight, None, order) for order in row_orders(weight)]
    for i, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[i + 1 :])


def test_rows_together_differ() -> None:
    weight = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert not torch.equal(functional.linear(x, weight), row_products(x, weight))


@pytest.mark.parametrize(
    ("dtype", "columns", "orders"),
    [(torch.bfloat16, 95, (0,)), (torch.float16, 64, (0,)), (torch.float32, 64, ())],
    ids=str,
)
def test_other_weights(dtype: torch.dtype, columns: int, orders: tuple[int, ...]) -> None:
    assert row_orders(torch.zeros(40, columns, dtype=dtype)) == orders


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda x, w, b, n: (x.float(), w, b, n),
            "x must have dtype bfloat16 or float16, but has float32",
        ),
        (lambda x, w, b, n: (x[0], w, b, n), r"x must have 2 dimension\(s\), but has 1"),
        (lambda x, w, b, n: (x, w.t(), b, n), "weight must be contiguous"),
        (lambda x, w, b, n: (x, w[:, :64].contiguous(), b, n), "weight must have 128 columns"),
        (
            lambda x, w, b, n: (x[:, :95].contiguous(), w[:, :95].contiguous(), b, 512),
            "multiple of 2 columns, but has 95|has no AVX512_BF16",
        ),
        (lambda x, w, b, n: (x, w.half(), b, n), "weight must have dtype bfloat16"),
        (
            lambda x, w, b, n: (x.half(), w.half(), b, 512),
            "x must have dtype bfloat16, but has float16|has no AVX512_BF16",
        ),
        (lambda x, w, b, n: (x, w, b[:3], n), "bias must have one entry for each of the 8 rows"),
        (lambda x, w, b, n: (x, w, b.float(), n), "bias must have dtype bfloat16"),
        (lambda x, w, b, n: (x, w, b, 7), "block must be even and not negative, but is 7"),
        (lambda x, w, b, n: (x, w, b, -2), "block must be even and not negative, but is -2"),
    ],
)
def test_argument_errors(change: Callable[..., Any], sentence: str) -> None:
    x, weight, bias = (torch.zeros(s).bfloat16() for s in ((4, 128), (8, 128), (8,)))
    with pytest.raises(RuntimeError, match=f"^row_products: .*{sentence}"):
        torch.ops.vllm_fork.row_products(*change(x, weight, bias, 0))


@NEEDS_CHAINS
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, w: (x.half(), w, 512), "x must have dtype bfloat16, but has float16"),
        (lambda x, w: (x, w.float(), 512), "weight must have dtype bfloat16, but has float32"),
        (lambda x, w: (x[0], w, 512), r"x must have 2 dimension\(s\), but has 1"),
        (lambda x, w: (x, w.t(), 512), "weight must be contiguous"),
        (lambda x, w: (x, w[:64], 512), "weight must have 128 rows, as x has columns, but has 64"),
        (lambda x, w: (x[:, :95].contiguous(), w[:95], 512), "multiple of 2 columns, but has 95"),
        (lambda x, w: (x, w, 0), "block must be even and above 0, but is 0"),
        (lambda x, w: (x, w, 7), "block must be even and above 0, but is 7"),
    ],
)
def test_argument_errors_of_transposed_weights(change: Callable[..., Any], sentence: str) -> None:
    x, weight = torch.zeros(4, 128).bfloat16(), torch.zeros(128, 8).bfloat16()
    with pytest.raises(RuntimeError, match=f"^transposed_row_products: .*{sentence}"):
        torch.ops.vllm_fork.transposed_row_products(*change(x, weight))
