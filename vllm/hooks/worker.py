"""``vllm.v1.worker``: its memory, what is checked when it is ready, its report, and the weights
that it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.deterministic.check import check_portable_runner
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.live_weights.install import let_weights_change
from vllm.fork.processes.pipeline import make_pipeline_buffers
from vllm.fork.startup.cpu_memory import fitting_cpu_memory, fitting_kv_cache
from vllm.fork.weight_transfer.registry import register_gloo
from vllm.hf_layers.report.report import log_report, worker_rows

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

__all__ = ["check_runner", "fitting_cpu_memory", "fitting_kv_cache", "worker_rows"]

register_gloo()


def check_runner(runner: GPUModelRunner) -> None:
    """Check the device's bits and the model's operations in deterministic mode, let the weights
    change, and log with hf_compat which layers have Hugging Face's bits; without flags nothing but
    `make_pipeline_buffers`, and on CPUs `let_weights_change`.

    Raises:
        ValueError: see `check_portable_runner`.
        RuntimeError: likewise.
    """
    if ForkFlags.of(runner.vllm_config).is_portable:
        check_portable_runner(runner)
    let_weights_change(runner)
    make_pipeline_buffers(runner)
    log_report(runner)
