"""How much memory a CPU worker asks for when the default fraction cannot be had."""

from __future__ import annotations

import math

from vllm.config import CacheConfig
from vllm.logger import init_logger
from vllm.utils.cpu_resource_utils import MemoryNodeInfo
from vllm.utils.mem_utils import format_gib

logger = init_logger(__name__)


def fitting_cpu_memory(requested: int, memory: MemoryNodeInfo, cache_config: CacheConfig) -> int:
    """Fit the worker's default memory request to what the machine has free.

    vLLM asks for ``gpu_memory_utilization`` (0.92 unless set) of the node's *total* memory and
    refuses to start when less is available. Small models on shared machines, and machines that
    report little free memory at first, never need that much, so when nobody chose the fraction
    it is applied to the *available* memory instead. A chosen fraction or an explicit KV-cache
    size stays as it is, and so does any request that can be met. It is asked at the start, and
    again for the KV cache once the model is compiled: other processes may have grown meanwhile.

    Args:
        requested: bytes that vLLM is about to ask for.
        memory: total and available bytes of the worker's memory node.
        cache_config: the engine's cache configuration.

    Returns:
        Bytes to ask for, at most `requested`.
    """
    default = CacheConfig.gpu_memory_utilization
    chosen = cache_config.gpu_memory_utilization != default
    if (
        chosen
        or cache_config.kv_cache_memory_bytes is not None
        or requested <= memory.available_memory
    ):
        return requested
    fitting = math.floor(memory.available_memory * default)
    logger.warning(
        "%s of %s GiB of memory are available, less than the default request of %s GiB: using "
        "%s GiB. Set --gpu-memory-utilization or --kv-cache-memory-bytes to choose another size.",
        format_gib(memory.available_memory),
        format_gib(memory.total_memory),
        format_gib(requested),
        format_gib(fitting),
    )
    return fitting
