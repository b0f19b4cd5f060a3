"""The model runner of a process, for layers and models that are given a configuration alone.

They ask for what no metadata of a step says: which tokens of a request are its prompt, for one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

PromptLength = Callable[[Any], int]
"""Returns how many tokens of a ``CachedRequestState`` `generate()` computes at once."""

_RUNNERS: WeakKeyDictionary[GPUModelRunner, PromptLength] = WeakKeyDictionary()


def remember_runner(runner: GPUModelRunner, prompt_length: PromptLength) -> None:
    """Let `runner_of` and `prompt_lengths` find a runner, for as long as it lives."""
    _RUNNERS[runner] = prompt_length


def runner_of(vllm_config: VllmConfig) -> GPUModelRunner:
    """Return the model runner of hf_compat that was made with this very object."""
    return next(one for one in _RUNNERS if one.vllm_config is vllm_config)


def prompt_lengths(layers: dict[str, Any], rows: list[int]) -> list[int] | None:
    """Return how many tokens of some requests of a runner's batch are computed at once.

    Args:
        layers: ``no_compile_layers`` of a step's forward context, which tell the runner.
        rows: of the batch.

    Returns:
        One for each of `rows`; None outside of hf_compat.
    """
    for runner, prompt_length in _RUNNERS.items():
        if runner.compilation_config.static_forward_context is layers:
            batch = runner.input_batch
            return [prompt_length(runner.requests[batch.req_ids[row]]) for row in rows]
    return None
