"""What an engine does about new weights: caches of the old ones go, and no answer is mixed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from vllm.fork.live_weights.registry import live_weights_of
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core import EngineCore

State = tuple[int, str | None]
"""A version of the weights, and why there are no answers with them; None if there are."""

_AS_LOADED: State = (0, None)
_SEEN = "seen_weights"  # of an engine: the states of its workers


def weights_state(worker: Any) -> State:
    """Return the state of the weights of a worker's model; called in the worker."""
    live = live_weights_of(worker.model_runner.get_model())
    return _AS_LOADED if live is None else (live.version, live.obstacle())


def noticing_new_weights(rpc: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``EngineCore.collective_rpc``, which all updates of weights go through.

    If a call has changed weights, the engine's caches are dropped; requests that run go on with
    the new weights from their first token on, as after ``pause_generation(mode="keep")``. If the
    weights are those of no model now, requests that run are aborted, and `check_weights` refuses
    new ones.
    """

    @wraps(rpc)
    def call(core: EngineCore, *args: Any, **kwargs: Any) -> Any:
        try:
            result = rpc(core, *args, **kwargs)
        except Exception:
            with suppress(Exception):  # of workers that have ended: the call has its own error
                _notice(core)
            raise
        _notice(core)
        return result

    return call


def noticing_new_adapters(add_lora: Callable[..., bool]) -> Callable[..., bool]:
    """Decorate ``EngineCore.add_lora``: blocks of an adapter that is replaced have its name."""

    @wraps(add_lora)
    def add(core: EngineCore, lora_request: LoRARequest) -> bool:
        added = add_lora(core, lora_request)
        if lora_request.load_inplace:
            core.reset_prefix_cache(reset_running_requests=True)
        return added

    return add


def check_weights(core: EngineCore, request: EngineCoreRequest) -> None:
    """Refuse a request to an engine whose weights are those of no model.

    Raises:
        ValueError: says what is wrong with them.
    """
    for _, obstacle in getattr(core, _SEEN, ()):
        if obstacle is not None:
            _answer(core, request, obstacle)
            raise ValueError(f"No answer to {request.request_id}: {obstacle}")


def _answer(core: EngineCore, request: EngineCoreRequest, reason: str) -> None:
    """Let the client of a request know the reason; what upstream sends for the exception has none,
    and comes too late to be read.
    """
    if (queue := getattr(core, "output_queue", None)) is not None:
        output = EngineCoreOutput(
            request.request_id, [], finish_reason=FinishReason.ERROR, stop_reason=reason
        )
        outputs = EngineCoreOutputs(outputs=[output], finished_requests={request.request_id})
        queue.put_nowait((request.client_index, outputs))


def _notice(core: EngineCore) -> None:
    states: list[State] = core.model_executor.collective_rpc(weights_state)
    if states == getattr(core, _SEEN, [_AS_LOADED] * len(states)):
        return
    setattr(core, _SEEN, states)
    if any(obstacle is not None for _, obstacle in states):
        aborted = core.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        if hasattr(core, "_send_abort_outputs"):
            core._send_abort_outputs(aborted)
    core.reset_prefix_cache(reset_running_requests=True)
    core.reset_mm_cache()
