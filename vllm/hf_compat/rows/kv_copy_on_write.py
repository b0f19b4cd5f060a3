"""KV blocks of requests that run as several rows.

Beams share blocks where they agree, and copy them where they part.

A beam search holds the distinct blocks of its beams as one request of vLLM's block pool. Beams that
continue the same beam share its blocks; only a block that two of them would write into is copied,
by the block copies that vLLM's workers run before a step.

The row of a guided request that sees the negative prompt has blocks of its own.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock, KVCacheBlockCopy
from vllm.v1.request import Request

BlockTables = list[list[KVCacheBlock]]
"""The blocks of one beam, for each KV cache group."""


class Fork:
    """The beams of one request.

    Args:
        manager: of the blocks.
        request: its prompt is computed.
        num_beams: rows.

    Attributes:
        sequences: all tokens of each beam.
        tables: the blocks of each beam.
        copies: to run before the next step.
    """

    def __init__(self, manager: KVCacheManager, request: Request, num_beams: int) -> None:
        self._managers = manager.coordinator.single_type_managers
        self._pool = manager.block_pool
        self._request_id = request.request_id
        self.prompt_len = request.num_prompt_tokens
        prompt = list(request.all_token_ids[: self.prompt_len])
        blocks = [list(m.req_to_blocks[self._request_id]) for m in self._managers]
        self.sequences = [list(prompt) for _ in range(num_beams)]
        self.tables: list[BlockTables] = [
            [list(group) for group in blocks] for _ in range(num_beams)
        ]
        self.copies: list[KVCacheBlockCopy] = []

    def continue_with(self, tokens: list[int], parents: list[int]) -> None:
        """Let beam i continue beam ``parents[i]`` with ``tokens[i]``; free what nobody holds."""
        self.sequences = [
            [*self.sequences[parent], token] for parent, token in zip(parents, tokens, strict=True)
        ]
        self.tables = [[list(group) for group in self.tables[parent]] for parent in parents]
        for group, manager in enumerate(self._managers):
            held = {block.block_id for tables in self.tables for block in tables[group]}
            all_blocks = manager.req_to_blocks[self._request_id]
            dropped = [block for block in all_blocks if block.block_id not in held]
            manager.req_to_blocks[self._request_id] = [
                block for block in all_blocks if block.block_id in held
            ]
            self._pool.free_blocks(reversed(dropped))

    def make_room(self) -> bool:
        """Give each beam a block of its own for its last token; False if blocks are missing."""
        position = len(self.sequences[0]) - 1
        places = [
            (group, tables[group], position // manager.block_size)
            for group, manager in enumerate(self._managers)
            for tables in self.tables
        ]
        taken: set[int] = set()
        lacking = [place for place in places if not self._may_write(*place[1:], taken)]
        if len(lacking) > self._pool.get_num_free_blocks():
            return False
        blocks = self._pool.get_new_blocks(len(lacking))
        for (group, table, index), block in zip(lacking, blocks, strict=True):
            self._managers[group].req_to_blocks[self._request_id].append(block)
            if index == len(table):
                table.append(block)
            else:
                self.copies.append(KVCacheBlockCopy(table[index].block_id, block.block_id))
                table[index] = block
        return True

    def _may_write(self, table: list[KVCacheBlock], index: int, taken: set[int]) -> bool:
        """Whether a beam has a block of its own at `index`; the first to ask gets a shared one."""
        if index == len(table):
            return False
        block = table[index]
        if block.block_id in taken or not self._pool.is_block_writable(block):
            return False
        taken.add(block.block_id)
        return True


class Guide:
    """The row of one request that sees its negative prompt, and then the request's tokens.

    Args:
        manager: of the blocks.
        prompt: the negative prompt's tokens.

    Attributes:
        table: its blocks, for each KV cache group.
        num_computed_tokens: of its sequence, after the steps that are scheduled.
    """

    def __init__(self, manager: KVCacheManager, prompt: list[int]) -> None:
        self._managers = manager.coordinator.single_type_managers
        self._pool = manager.block_pool
        self.prompt = prompt
        self.table: BlockTables = [[] for _ in self._managers]
        self.num_computed_tokens = 0

    def num_missing_blocks(self, num_tokens: int) -> list[int]:
        """Return how many blocks each group lacks for a sequence of that length."""
        return [
            -(-num_tokens // manager.block_size) - len(group)
            for manager, group in zip(self._managers, self.table, strict=True)
        ]

    def make_room(self, num_tokens: int) -> None:
        """Take the missing blocks, which must be free."""
        missing = self.num_missing_blocks(num_tokens)
        for number, group in zip(missing, self.table, strict=True):
            group.extend(self._pool.get_new_blocks(max(number, 0)))

    def free(self) -> None:
        """Return all blocks."""
        for group in self.table:
            self._pool.free_blocks(reversed(group))
            group.clear()
        self.num_computed_tokens = 0


class ForkingKVCacheManager:
    """vLLM's manager of KV blocks, for which some requests have more than one row.

    Args:
        manager: does everything for requests that are not.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._no_blocks = KVCacheBlocks(tuple([] for _ in manager.coordinator.single_type_managers))
        self.forks: dict[str, Fork] = {}
        self.guides: dict[str, Guide] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def guide(self, request_id: str, prompt: list[int]) -> None:
        """Let a request have a row that sees its negative prompt, until `forget`."""
        self.guides[request_id] = Guide(self._manager, prompt)

    def forget(self, request_id: str) -> None:
        """Let a request that has ended have no row besides its own."""
        self.guides.pop(request_id, None)

    def fork(self, request: Request, num_beams: int) -> Fork:
        """Let a request whose prompt is computed go on as beams."""
        fork = self.forks[request.request_id] = Fork(self._manager, request, num_beams)
        return fork

    def allocate_slots(
        self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> KVCacheBlocks | None:
        """As ``KVCacheManager.allocate_slots``; beams get their blocks, and none are returned."""
        fork = self.forks.get(request.request_id)
        if fork is not None:
            return self._no_blocks if fork.make_room() else None
        guide = self.guides.get(request.request_id)
        if guide is None:
            return self._manager.allocate_slots(request, num_new_tokens, *args, **kwargs)
        return self._allocate_guided(guide, request, num_new_tokens, *args, **kwargs)

    def _allocate_guided(
        self, guide: Guide, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> KVCacheBlocks | None:
        """Allocate for both rows, or none: the guide starts with the last chunk of the prompt."""
        num_tokens = request.num_computed_tokens + num_new_tokens
        num_tokens += kwargs.get("num_new_computed_tokens", 0)
        if num_tokens < request.num_tokens:
            return self._manager.allocate_slots(request, num_new_tokens, *args, **kwargs)
        num_guided = len(guide.prompt) + num_tokens - request.num_prompt_tokens
        needed = sum(guide.num_missing_blocks(num_guided))
        for manager in self._manager.coordinator.single_type_managers:
            held = len(manager.req_to_blocks.get(request.request_id, ()))
            needed += -(-num_tokens // manager.block_size) - held
        if needed > self._manager.block_pool.get_num_free_blocks():
            return None
        blocks = self._manager.allocate_slots(request, num_new_tokens, *args, **kwargs)
        if blocks is not None:
            guide.make_room(num_guided)
        return blocks

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """As ``KVCacheManager.cache_blocks``; what beams generate is not offered to others."""
        if request.request_id not in self.forks:
            self._manager.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        """As ``KVCacheManager.free``."""
        self._free_rows(request)
        self._manager.free(request)

    def pop_blocks_for_free(self, request: Request) -> list[KVCacheBlock]:
        """As ``KVCacheManager.pop_blocks_for_free``."""
        self._free_rows(request)
        return self._manager.pop_blocks_for_free(request)

    def _free_rows(self, request: Request) -> None:
        self.forks.pop(request.request_id, None)
        if request.request_id in self.guides:
            self.guides[request.request_id].free()
