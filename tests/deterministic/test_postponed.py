"""Rotations that are left to attention."""

import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from vllm.deterministic.positions.postponed import Rotation, is_left, leave, taken

HEADS = (3, 2, 16)


def rotation() -> Rotation:
    table = torch.tensor([[0.0] * 8 + [1.0] * 8] * 4)  # by a right angle
    return Rotation(torch.arange(3), table, is_interleaved=False)


def side_by_side() -> tuple[torch.Tensor, torch.Tensor]:
    query, key = torch.ones(3, 64).split([32, 32], dim=1)
    return query.view(HEADS), key.view(HEADS)


def test_attention_finds_what_was_left_once() -> None:
    for query, key in (side_by_side(), (torch.ones(HEADS), torch.ones(HEADS))):
        left = rotation()
        leave(left, query, key)
        assert is_left(key.flatten(1))
        assert taken(query.flatten(1).view(HEADS), key) is left
        assert not is_left(key)
        assert taken(query, key) is None


def test_nothing_was_left() -> None:
    query, key = side_by_side()
    assert not is_left(key)
    assert taken(query, key) is None


def test_others_than_those_that_were_left_are_refused() -> None:
    for i in range(3):
        query, key = side_by_side()
        leave(rotation(), query, key)
        wrong = [(query, key.clone()), (query.clone(), key), (query, key[:2])][i]
        with pytest.raises(RuntimeError, match="attention takes queries or keys that are not"):
            taken(*wrong)


def test_what_is_left_keeps_no_memory() -> None:
    query, key = side_by_side()
    leave(rotation(), query, key)
    storage = StorageWeakRef(key.untyped_storage())
    gc.disable()
    del query, key
    assert storage.expired()
    gc.enable()


def test_a_rotation() -> None:
    query, key = side_by_side()
    rotation().rotate(query, key)
    assert query.flatten(1)[0].tolist() == ([-1.0] * 8 + [1.0] * 8) * 2
    assert torch.equal(query, key)
