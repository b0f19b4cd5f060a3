"""Pipeline parallelism on CPUs, for code that is not compiled.

Why: vLLM makes a rank's buffers in the first run of a model, which is left out on CPUs where
  nothing is compiled: the first request ends the engine.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/pipeline-uncompiled-cpu.md).
Exit condition: Upstream's pipeline on CPUs runs uncompiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed import get_pp_group
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def make_pipeline_buffers(runner: GPUModelRunner) -> None:
    """Make the buffers in which a rank takes what the one before it has computed.

    vLLM makes them in the first run of a model, which is left out on CPUs where nothing is
    compiled; the first request would end the engine.

    Args:
        runner: whose model is loaded; with one rank, or if it has buffers, nothing changes.
    """
    if (
        not current_platform.is_cpu()
        or get_pp_group().is_first_rank
        or runner.intermediate_tensors is not None
    ):
        return
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
    )
