"""A weight that is packed into the memory of another is what it would be in memory of its own."""

from typing import Any

import pytest
import torch

from tests.kernels.portable_cases import assert_same
from tests.kernels.product.portable_product_cases import CASES, Case, bell
from tests.kernels.product.test_portable_product import exponents_for, packed_weight
from vllm.fork_kernels.portable.product import (
    pack_weight,
    portable_product,
    repack_weight,
    unpack_weight,
)


@pytest.mark.parametrize("first", [1, 2.0**29], ids=["into its memory", "perhaps refused"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_again(case: Case, first: float) -> None:
    weight = case.make_weight()
    packed = packed_weight(case)
    new = weight.flip(0).contiguous()
    new[0, 0] = min(first, torch.finfo(new.dtype).max)
    expected = pack_weight(new, exponents_for(new, case))
    place = packed.packed.data_ptr()
    repack_weight(packed, new, expected.exponents)
    assert packed.packed.data_ptr() == place
    assert_same(unpack_weight(packed), unpack_weight(expected))
    x = case.make_x()
    assert_same(portable_product(x, packed), portable_product(x, expected))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 32512.0 * 2.0**30])
def test_what_is_refused_changes_nothing(number: float) -> None:
    packed, weight = pack_weight(bell(40, 300, 2)), bell(40, 300, 1)
    before = packed.packed.clone()
    weight[33, 270] = number
    with pytest.raises(RuntimeError, match=r"weight\[33\] has a number that is not"):
        repack_weight(packed, weight)
    assert torch.equal(packed.packed, before)


REPACK_ERRORS = [
    ((torch.zeros(6, 64), None), RuntimeError, "^repack_weight: packed must have one entry for"),
    ((torch.zeros(6, 32).double(), None), RuntimeError, "^repack_weight: weight must have dtype"),
    ((torch.zeros(6, 32), torch.zeros(32, dtype=torch.int8)), ValueError, "with exponents is"),
]


@pytest.mark.parametrize(("arguments", "error", "sentence"), REPACK_ERRORS)
def test_errors_in_packing_again(
    arguments: tuple[Any, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        repack_weight(pack_weight(torch.zeros(6, 32)), *arguments)


def test_opcheck() -> None:
    case = Case(6, 40, 264)
    weight = packed_weight(case)
    arguments = weight.packed, case.make_weight(), weight.exponents, weight.segments
    torch.library.opcheck(torch.ops.vllm_fork.repack_weight.default, arguments)
