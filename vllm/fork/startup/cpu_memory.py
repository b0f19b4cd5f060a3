"""How much memory a CPU worker asks for when the default fraction cannot be had.

Why: An engine of a small model refuses to start where 92 % of the machine's memory is not free,
  although nobody chose that fraction.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/memory-in-use.md).
Exit condition: Upstream sizes the default from available memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vllm.config import CacheConfig
from vllm.fork.processes.cores import ranks_of_a_node
from vllm.logger import init_logger
from vllm.utils.cpu_resource_utils import MemoryNodeInfo, get_visible_memory_node
from vllm.utils.mem_utils import format_gib

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)


def fitting_cpu_memory(requested: int, memory: MemoryNodeInfo, vllm_config: VllmConfig) -> int:
    """Fit the worker's default memory request to what the machine has free.

    vLLM asks for ``gpu_memory_utilization`` (0.92 unless set) of the node's *total* memory and
    refuses to start when less is available. Small models on shared machines, and machines that
    report little free memory at first, never need that much, so when nobody chose the fraction
    it is applied to the *available* memory instead. Ranks that share a node share its memory,
    which each of them would fill otherwise. A chosen fraction or an explicit KV-cache size stays
    as it is.

    Args:
        requested: bytes that vLLM is about to ask for.
        memory: total and available bytes of the worker's memory node.
        vllm_config: the engine's.

    Returns:
        Bytes to ask for, at most `requested`.
    """
    if _is_chosen(vllm_config):
        return requested
    ranks = ranks_of_a_node(get_visible_memory_node(), vllm_config.parallel_config)
    if requested <= memory.available_memory:
        return requested // ranks
    fitting = _share(memory, ranks)
    logger.warning(
        "%s of %s GiB of memory are available, less than the default request of %s GiB: using "
        "%s GiB%s. Set --gpu-memory-utilization or --kv-cache-memory-bytes to choose another size.",
        format_gib(memory.available_memory),
        format_gib(memory.total_memory),
        format_gib(requested),
        format_gib(fitting),
        f" for each of {ranks} ranks" if ranks > 1 else "",
    )
    return fitting


def fitting_kv_cache(requested: int, memory: MemoryNodeInfo, vllm_config: VllmConfig) -> int:
    """Fit the KV cache to what is free once the model is compiled, which takes minutes.

    Other processes may have grown meanwhile, and vLLM ends if less is free than was at the start.

    Args:
        requested: bytes that vLLM is about to take for the KV cache of this worker.
        memory: as in `fitting_cpu_memory`, now.
        vllm_config: the engine's.

    Returns:
        Bytes to take, at most `requested`.
    """
    if _is_chosen(vllm_config):
        return requested
    ranks = ranks_of_a_node(get_visible_memory_node(), vllm_config.parallel_config)
    return min(requested, _share(memory, ranks))


def _is_chosen(vllm_config: VllmConfig) -> bool:
    """Whether somebody has chosen how much memory to take."""
    cache_config = vllm_config.cache_config
    fraction = cache_config.gpu_memory_utilization
    is_default = fraction == CacheConfig.gpu_memory_utilization
    return not is_default or cache_config.kv_cache_memory_bytes is not None


def _share(memory: MemoryNodeInfo, ranks: int) -> int:
    """Return the default fraction of what is available, in bytes for each rank."""
    return math.floor(memory.available_memory * CacheConfig.gpu_memory_utilization) // ranks
