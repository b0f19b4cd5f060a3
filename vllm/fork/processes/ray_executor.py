"""Ray as the executor of one engine on CPUs, for which vLLM has none: it counts GPUs alone."""

from __future__ import annotations

from typing import Any

import ray

from vllm.platforms import current_platform
from vllm.v1.executor import ray_executor_v2
from vllm.v1.executor.ray_executor_v2 import RayExecutorV2, RayWorkerProc


class CPURayWorker(RayWorkerProc):
    """A worker that has a CPU of its placement group, and no accelerator."""

    def get_node_and_physical_gpu_ids(self) -> tuple[str, list[int]]:
        return ray.get_runtime_context().get_node_id(), []


class CPURayExecutor(RayExecutorV2):
    """vLLM's executor, whose placement group has a CPU for each rank."""

    def _init_executor(self) -> None:
        # What vLLM reserves, and what it starts there, are names that it looks up.
        current_platform.ray_device_key = "CPU"
        ray_executor_v2.RayWorkerProc = CPURayWorker
        super()._init_executor()

    @staticmethod
    def _get_actor_resource_kwargs() -> dict[str, Any]:
        return {"num_gpus": 0}
