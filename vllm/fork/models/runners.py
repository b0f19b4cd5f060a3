"""The model runner of a process, for layers and models that are given a configuration alone.

They ask for what no metadata of a step says: which tokens of a request are its prompt, for one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
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
    if (runner := _runner_with(layers)) is None:
        return None
    prompt_length, ids = _RUNNERS[runner], runner.input_batch.req_ids
    return [prompt_length(runner.requests[ids[row]]) for row in rows]


def rows_of_requests(layers: dict[str, Any]) -> tuple[list[int], list[int]] | None:
    """Return where the requests of a runner's step lie in its rows, for models whose attention
    keeps no such numbers, or those of parts of requests.

    Args:
        layers: as for `prompt_lengths`.

    Returns:
        The first row of each request and the number of rows, and how many tokens the last row of
        each sees; None outside of hf_compat.
    """
    if (runner := _runner_with(layers)) is None:
        return None
    batch = runner.input_batch
    starts: list[int] = runner.query_start_loc.np[: batch.num_reqs + 1].tolist()
    before: list[int] = batch.num_computed_tokens_cpu[: batch.num_reqs].tolist()
    rows = zip(before, pairwise(starts), strict=True)
    return starts, [computed + end - begin for computed, (begin, end) in rows]


def _runner_with(layers: dict[str, Any]) -> GPUModelRunner | None:
    found = (one for one in _RUNNERS if one.compilation_config.static_forward_context is layers)
    return next(found, None)
