"""What takes the results of norms and rotations, as it is seen while a model computes."""

from collections.abc import Iterator
from contextlib import suppress
from unittest import mock

import pytest
import torch

from vllm.deterministic import fusion
from vllm.deterministic.fusion import Rotator, Source, attends, fused_products, takes
from vllm.fork_kernels.portable.product import PackedWeight, pack_weight

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


def test_a_result_in_another_shape_is_fused() -> None:
    """As attention's, whose heads become one row."""
    source, taker = Source(), weight()
    with fused_products(CPU):
        heads = torch.ones(3, 2, 4)
        source.made(heads.flatten(1))
        takes(taker, heads.view(3, 8))
    assert source.consumer is taker


def test_a_product_of_narrower_rows_is_not_fused() -> None:
    source, taker = Source(), weight()
    with fused_products(CPU):
        takes(taker, source.made(torch.ones(3, 16)).view(6, 8))
    assert source.consumer is None


class Layer:
    """Queries, keys and values in one tensor, or in three, and what rotates them."""

    def __init__(self, rotator: Rotator | None = None, is_apart: bool = False) -> None:
        self.rotator = rotator or Rotator()
        parts = torch.ones(3, 12).split([4, 4, 4], dim=1)
        self.query, self.key, self.value = [x.clone() for x in parts] if is_apart else parts

    def rotate(self) -> None:
        self.rotator.rotated(heads_of(self.query), heads_of(self.key))

    def attend(self) -> None:
        attends(heads_of(self.query), heads_of(self.key))


def heads_of(x: torch.Tensor) -> torch.Tensor:
    return x.view(3, 2, 2)


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_rotation_that_attention_takes_is_postponed(is_apart: bool) -> None:
    rotator = Rotator()
    with fused_products(CPU):
        for _ in range(2):  # layers that share it
            layer = Layer(rotator, is_apart)
            layer.rotate()
            layer.key.new_empty(0)
            layer.attend()
            layer.key.sum()  # it is rotated now
    assert rotator.is_postponed


@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize("is_apart", [False, True])
def test_a_rotation_that_something_else_reads_is_not_postponed(name: str, is_apart: bool) -> None:
    layers = [Layer(is_apart=is_apart) for _ in range(3)]
    with fused_products(CPU):
        for layer in layers:
            layer.rotate()
        heads_of(getattr(layers[0], name)).norm()
        getattr(layers[1], name).mul_(2)
        for layer in layers:
            layer.attend()
    assert [layer.rotator.is_postponed for layer in layers] == [False, False, True]


def test_a_rotation_of_which_attention_takes_a_copy_is_not_postponed() -> None:
    layers = [Layer(is_apart=True) for _ in range(3)]
    with fused_products(CPU):
        for layer in layers:
            layer.rotate()
        layers[0].key = layers[0].key.clone()
        layers[1].query = torch.ones(3, 4)
        for layer in layers:
            layer.attend()
    assert [layer.rotator.is_postponed for layer in layers] == [False, False, True]


def test_one_layer_that_reads_is_enough_for_all() -> None:
    rotator = Rotator()
    with fused_products(CPU):
        for is_read in (False, True):
            layer = Layer(rotator)
            layer.rotate()
            if is_read:
                layer.key.clone()
            layer.attend()
    assert not rotator.is_postponed


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
