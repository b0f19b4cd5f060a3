"""Beams share blocks where they agree, and never read or write what another one has written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm.hf_compat.rows.kv_copy_on_write import Fork, ForkingKVCacheManager
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

pytestmark = pytest.mark.fast

BLOCK_SIZE = 4


def make_manager(num_blocks: int, *, caching: bool = True) -> ForkingKVCacheManager:
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    manager = KVCacheManager(
        KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        max_model_len=512,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        enable_caching=caching,
    )
    return ForkingKVCacheManager(manager)


def make_request(prompt: list[int]) -> Request:
    params = SamplingParams(max_tokens=64)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return Request("r", prompt, params, None, block_hasher=hasher)


class Memory:
    """What attention would find in the blocks: the token written at each place."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[int | None]] = {}

    def block(self, block_id: int) -> list[int | None]:
        return self.blocks.setdefault(block_id, [None] * BLOCK_SIZE)

    def run(self, fork: Fork) -> None:
        """Run a step: the copies, then each beam's write of its last token."""
        for source, target in fork.copies:
            self.blocks[target] = list(self.block(source))
        fork.copies = []
        for sequence, (table,) in zip(fork.sequences, fork.tables, strict=True):
            index, offset = divmod(len(sequence) - 1, BLOCK_SIZE)
            self.block(table[index].block_id)[offset] = sequence[-1]

    def read(self, fork: Fork, beam: int) -> list[int | None]:
        (table,) = fork.tables[beam]
        tokens = [token for block in table for token in self.block(block.block_id)]
        return tokens[: len(fork.sequences[beam])]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), prompt_len=st.integers(1, 13), num_beams=st.integers(2, 5))
def test_each_beam_finds_its_own_tokens(
    data: st.DataObject, prompt_len: int, num_beams: int
) -> None:
    manager, memory = make_manager(200), Memory()
    free = manager.block_pool.get_num_free_blocks()
    request = make_request(list(range(prompt_len)))
    blocks = manager.allocate_slots(request, prompt_len)
    assert blocks is not None
    for i, block_id in enumerate(blocks.get_block_ids()[0]):
        for offset in range(BLOCK_SIZE):
            memory.block(block_id)[offset] = i * BLOCK_SIZE + offset
    request.num_computed_tokens = prompt_len
    fork = manager.fork(request, num_beams)
    token = 1000
    for step in range(data.draw(st.integers(1, 12))):
        beams = st.integers(0, num_beams - 1)
        parents = data.draw(st.lists(beams, min_size=num_beams, max_size=num_beams))
        tokens = [token + i for i in range(num_beams)]
        token += num_beams
        expected = [[*fork.sequences[p], t] for p, t in zip(parents, tokens, strict=True)]
        fork.continue_with(tokens, [0] * num_beams if step == 0 else parents)
        if step:
            assert fork.sequences == expected
        assert manager.allocate_slots(request, 1) is not None
        memory.run(fork)
        for beam, sequence in enumerate(fork.sequences):
            assert memory.read(fork, beam) == sequence
        held = {block.block_id for (table,) in fork.tables for block in table}
        assert manager.block_pool.get_num_free_blocks() == free - len(held)
    manager.free(request)
    assert manager.block_pool.get_num_free_blocks() == free
    assert not manager.forks


def test_prompts_are_shared_and_not_copied() -> None:
    manager = make_manager(100)
    request = make_request(list(range(40)))
    manager.allocate_slots(request, 40)
    fork = manager.fork(request, 5)
    fork.continue_with([7] * 5, [0] * 5)
    free = manager.block_pool.get_num_free_blocks()
    manager.allocate_slots(request, 1)
    assert not fork.copies
    assert free - manager.block_pool.get_num_free_blocks() == 5


@pytest.mark.parametrize("caching", [True, False])
def test_a_step_without_enough_blocks_changes_nothing(caching: bool) -> None:
    manager = make_manager(8, caching=caching)
    request = make_request(list(range(8)))
    manager.allocate_slots(request, 8)
    fork = manager.fork(request, 6)
    fork.continue_with(list(range(6)), [0] * 6)
    free = manager.block_pool.get_num_free_blocks()
    tables = [[list(group) for group in table] for table in fork.tables]
    assert manager.allocate_slots(request, 1) is None
    assert fork.tables == tables
    assert not fork.copies
    assert manager.block_pool.get_num_free_blocks() == free
