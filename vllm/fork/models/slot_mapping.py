"""Where in the KV cache each token goes: what stands in for Triton's kernel on CPUs.

Why: vLLM 0.32.0's own stand-in (``_compute_slot_mapping_kernel_impl`` of
  ``vllm/utils/cpu_triton_utils.py``) has a parameter that its kernel no longer has, so that without
  Triton-CPU no step of an engine runs. The wheel that is pinned for CPUs has it repaired; a wheel
  that was built from vLLM's source release has not. Its C++ starts all threads for a sum of a few
  numbers, and waits at the end of it for those that have lost their cores.
Upstream status: Bug in 0.32.0, to be reported; the wheel that is pinned for CPUs has it repaired.
Exit condition: Upstream's stand-in has its kernel's parameters, or the pinned text is no longer
  0.32.0's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def compute_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    slot_mapping: torch.Tensor,
    kv_cache_block_size: int,
    total_cp_world_size: int,
    *_: Any,
) -> None:
    """Write the slot of each token of a batch.

    The parameters are those of ``ComputeSlotMappingKernel.kernel`` in
    ``vllm/v1/worker/block_table.py``, in its order.

    Args:
        num_tokens: of the batch.
        max_num_tokens: of any batch.
        query_start_loc: [requests + 1] int32, where each request's tokens start.
        positions: [num_tokens] int64, of each token in its request.
        block_table: [max requests, blocks] int32, the blocks of each request.
        block_table_stride: blocks in a row of it.
        slot_mapping: [num_tokens] int64, the result.
        kv_cache_block_size: tokens in a block.
        total_cp_world_size: ranks of context parallelism, which CPUs have not.
    """
    assert total_cp_world_size == 1, "Context parallelism is not supported on CPUs."
    lengths = np.diff(query_start_loc.numpy())
    rows = np.repeat(np.arange(len(lengths)), lengths)
    blocks, offsets = np.divmod(positions.numpy()[: len(rows)], kv_cache_block_size)
    firsts = block_table.numpy()[rows, blocks].astype(np.int64) * kv_cache_block_size
    np.add(firsts, offsets, out=slot_mapping.numpy()[: len(rows)])
