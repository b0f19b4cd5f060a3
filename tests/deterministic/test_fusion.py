"""Which product takes the results of a norm, as it is seen while a model computes."""

from collections.abc import Iterator
from contextlib import suppress
from unittest import mock

import pytest
import torch

from vllm.deterministic import fusion
from vllm.deterministic.fusion import Source, fused_products, takes
from vllm.fork_ops.portable_product import PackedWeight, pack_weight

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    """Tensors on the CPU count as those of a GPU."""
    with mock.patch.object(fusion, "has_digits", return_value=True), torch.inference_mode():
        yield


def weight() -> PackedWeight:
    return pack_weight(torch.ones(2, 8))


def rows() -> torch.Tensor:
    return torch.ones(3, 8)


def test_a_result_that_one_product_takes() -> None:
    source, taker = Source(), weight()
    with fused_products(CPU):
        for _ in range(2):
            takes(taker, source.made(rows()))
    assert source.consumer is taker


def test_the_first_of_two_products_is_fused() -> None:
    source, taker = Source(), weight()
    with fused_products(CPU):
        result = source.made(rows())
        takes(taker, result)
        takes(weight(), result)
    assert source.consumer is taker


def test_a_result_that_is_written_to_is_not_fused() -> None:
    sources, taker = [Source() for _ in range(4)], weight()
    with fused_products(CPU):
        results = [source.made(rows()) for source in sources]
        results[0].mul_(2)
        results[1][1:].zero_()  # through a view
        torch.add(rows(), 1, out=results[2])
        for result in results:
            takes(taker, result)
    assert [source.consumer is taker for source in sources] == [False, False, False, True]


def test_a_result_that_is_written_to_later_is_not_fused() -> None:
    """It may be multiplied again."""
    source, taker = Source(), weight()
    with fused_products(CPU):
        result = source.made(rows())
        takes(taker, result)
        result += 1
    assert source.consumer is None


def test_results_of_several_products_are_not_fused() -> None:
    """As of a norm that several layers share."""
    source = Source()
    with fused_products(CPU):
        takes(weight(), source.made(rows()))
        takes(weight(), source.made(rows()))
    assert source.consumer is None


def test_other_tensors_are_not_fused() -> None:
    """Of a copy or a part the product may be the same, but nobody has made digits."""
    source, taker = Source(), weight()
    with fused_products(CPU):
        result = source.made(rows())
        takes(taker, result.clone())
        takes(taker, result[:2])
    assert source.consumer is None


def test_nothing_is_seen_outside() -> None:
    source, taker = Source(), weight()
    takes(taker, source.made(rows()))
    with mock.patch.object(fusion, "has_digits", return_value=False), fused_products(CPU):
        takes(taker, source.made(rows()))
    with suppress(KeyError), fused_products(CPU):
        takes(taker, source.made(rows()))
        raise KeyError
    takes(taker, source.made(rows()))
    assert source.consumer is None
