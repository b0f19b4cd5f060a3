"""What is made of parameters is made anew once they are others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vllm.fork.models.followed import Followed, Source

pytestmark = pytest.mark.fast


def made_of(layer: nn.Linear, *, by_memory: bool = False) -> tuple[Followed[int], list[int]]:
    """Something that is made of a layer's parameters, and how often it was made."""
    times = [0]

    def make() -> int:
        times[0] += 1
        return times[0]

    sources: list[Source] = [(layer._parameters, "weight"), (layer._parameters, "bias")]
    return Followed(make, sources, by_memory=by_memory), times


def test_it_is_made_once_of_the_same_parameters() -> None:
    layer = nn.Linear(2, 2)
    followed, times = made_of(layer)
    assert times == [0]
    assert [followed.current, followed.current] == [1, 1]
    layer.weight.data.zero_()
    assert followed.current == 1


def test_it_is_made_anew_of_another_parameter_and_without_one() -> None:
    layer = nn.Linear(2, 2)
    followed, _ = made_of(layer)
    assert followed.current == 1
    layer.weight = nn.Parameter(torch.zeros(2, 2))
    assert followed.current == 2
    layer._parameters["bias"] = None
    assert [followed.current, followed.current] == [3, 3]


@pytest.mark.parametrize("by_memory", [False, True])
def test_other_memory_of_a_parameter_counts_where_it_is_asked_for(by_memory: bool) -> None:
    layer = nn.Linear(2, 2)
    followed, _ = made_of(layer, by_memory=by_memory)
    assert followed.current == 1
    kept = layer.weight.data
    layer.weight.data = torch.zeros(2, 2)
    assert followed.current == 1 + by_memory
    layer.weight.data = kept
    assert followed.current == 1 + 2 * by_memory


def test_making_it_may_move_the_parameters() -> None:
    layer, places = nn.Linear(2, 2), list[int]()

    def make() -> int:
        layer.weight.data = layer.weight.data.clone()
        places.append(layer.weight.data_ptr())
        return len(places)

    followed = Followed(make, [(layer._parameters, "weight")], by_memory=True)
    assert [followed.current, followed.current] == [1, 1]
