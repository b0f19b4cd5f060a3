"""The stand-in for Triton's kernel of slot mapping, as an engine on CPUs launches it."""

from __future__ import annotations

import inspect
import random

import pytest
import torch

from vllm.fork.models.slot_mapping import compute_slot_mapping

pytestmark = pytest.mark.fast


def launched() -> object:
    """Return what the engine launches, after the platform has put the stand-ins in place."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.block_table import ComputeSlotMappingKernel

    CpuPlatform.import_kernels()
    if not hasattr(ComputeSlotMappingKernel.kernel, "_impl"):
        CpuPlatform.register_triton_kernel_overrides()
    return ComputeSlotMappingKernel.kernel


def test_the_parameters_are_the_kernels() -> None:
    names = launched().arg_names  # type: ignore[attr-defined]
    own = [p.name for p in inspect.signature(compute_slot_mapping).parameters.values()]
    assert [name.removesuffix("_ptr").lower() for name in names][: len(own) - 1] == own[:-1]


def test_the_platform_launches_it() -> None:
    assert launched()._impl is compute_slot_mapping  # type: ignore[attr-defined]


def test_every_token_has_the_slot_of_its_block() -> None:
    generator = random.Random(7)
    block_size, rows, blocks = 16, 5, 8
    table = torch.tensor(generator.sample(range(1, 500), rows * blocks)).int().view(rows, blocks)
    lengths = [generator.randint(1, 40) for _ in range(rows)]
    firsts = [generator.randint(0, blocks * block_size - 40) for _ in range(rows)]
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    positions = torch.cat(
        [torch.arange(first, first + n) for first, n in zip(firsts, lengths, strict=True)]
    )
    num_tokens, behind = int(starts[-1]), 3
    slots = torch.full((num_tokens + behind,), -7)
    upstreams = slots.clone()
    positions = torch.cat([positions, torch.zeros(behind, dtype=torch.int64)])
    kernel = launched()
    kernel[(rows + 1,)](  # type: ignore[index]
        *(num_tokens, len(slots), starts, positions, table, blocks, slots),
        *(block_size, 1, 0, 1, -1, 1024),
    )
    row = torch.repeat_interleave(torch.arange(rows), torch.tensor(lengths))
    place = positions[:num_tokens]
    expected = table[row, place // block_size].long() * block_size + place % block_size
    assert torch.equal(slots[:num_tokens], expected)
    torch.ops._C.compute_slot_mapping_kernel_impl(starts, positions, table, upstreams, block_size)
    assert torch.equal(slots, upstreams)
