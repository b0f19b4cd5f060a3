"""The AMX kernel of the portable product, on tiles that are emulated: on any CPU, the same bits.

Where the CPU has AMX, test_cpu_isa.py runs it for real.
"""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.kernels.portable_cases import assert_same
from tests.kernels.product.portable_product_cases import CASES, Case
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)

CSRC = Path(__file__).parents[3] / "csrc"
SOURCE = Path(__file__).with_name("emulated_tiles.cpp")
GARBAGE = 0x5B

Product = Callable[[torch.Tensor, PackedWeight, torch.Tensor | None], torch.Tensor]


@pytest.fixture(scope="module")
def emulated_product(tmp_path_factory: pytest.TempPathFactory) -> Product:
    """``portable_product`` in float32, with the AMX kernel."""
    path = tmp_path_factory.mktemp("amx") / "emulated_tiles.so"
    options = ("-std=c++20", "-O2", "-ffp-contract=off", "-fPIC", "-shared", f"-I{CSRC}")
    subprocess.run(["g++", *options, str(SOURCE), "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    library.digits_bytes.restype = ctypes.c_int64

    def product(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
        x = x.float().contiguous()
        sizes = [
            ctypes.c_int64(size)
            for size in (len(x), weight.out_features, weight.in_features, weight.segments)
        ]
        digits = torch.full((library.digits_bytes(*sizes) + 64,), GARBAGE, dtype=torch.uint8)
        result = torch.full((len(x), weight.out_features), torch.nan)
        wide_bias = None if bias is None else bias.float()
        tensors = (x, weight.packed, weight.exponents, wide_bias, digits, result)
        pointers = [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in tensors]
        assert library.product(*pointers, *sizes) == 0, "a tile was not set up, or read elsewhere"
        assert (digits[-64:] == GARBAGE).all()
        return result

    return product


def assert_emulation_agrees(case: Case, emulated_product: Product) -> None:
    weight = case.make_weight()
    exponents = equalising_exponents(channel_statistics(weight)) if case.is_equalised else None
    packed = pack_weight(weight, exponents)
    packed.packed[-2048:] = GARBAGE  # may be read, and must not count
    x, bias = case.make_x(), case.make_bias()
    found = emulated_product(x, packed, bias)
    expected = portable_product(x, packed, bias, torch.float32)
    assert_same(found, expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits(case: Case, emulated_product: Product) -> None:
    assert_emulation_agrees(case, emulated_product)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33, 95, 96, 97, 200])
@pytest.mark.parametrize("outputs", [16, 33])
def test_tiles_of_rows(rows: int, outputs: int, emulated_product: Product) -> None:
    assert_emulation_agrees(Case(rows, outputs, 616, kind="outliers"), emulated_product)
