"""The model runner of a process by the configuration that it was made with.

Exact mode's model, which vLLM gives a configuration alone, asks for the batch of its runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_RUNNERS: WeakValueDictionary[int, GPUModelRunner] = WeakValueDictionary()


def remember_runner(runner: GPUModelRunner) -> None:
    """Let `runner_of` find `runner`, for as long as it lives."""
    _RUNNERS[id(runner.vllm_config)] = runner


def runner_of(vllm_config: VllmConfig) -> GPUModelRunner:
    """Return the model runner of hf_compat that was made with this very object."""
    return _RUNNERS[id(vllm_config)]
