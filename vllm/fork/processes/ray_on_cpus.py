"""Ray as executor: which class it is on CPUs, where vLLM's own knows GPUs alone.

Why: Upstream's executor for Ray counts GPUs, of which there are none.
Upstream status: Not reported yet: a matter of defaults.
Exit condition: Upstream's executor for Ray takes ranks on CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def use_ray_on_cpus(vllm_config: VllmConfig) -> None:
    """Choose the fork's executor where Ray is asked for on CPUs, in place."""
    parallel = vllm_config.parallel_config
    if not current_platform.is_cpu() or parallel.distributed_executor_backend != "ray":
        return
    from vllm.fork.processes.ray_executor import CPURayExecutor  # imports Ray, which is an extra

    parallel.distributed_executor_backend = CPURayExecutor
