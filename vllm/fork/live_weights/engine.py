"""What an engine does about new weights: caches of the old ones go, and no answer is mixed.

Weights of adapters are new to it, too, with the first request that has them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMValidationError
from vllm.fork.checked_adapters import CheckedAdapters
from vllm.fork.live_weights.registry import REFUSED
from vllm.fork.live_weights.worker import AS_LOADED, IN_PLACE_OF_UPSTREAMS, State, weights_state
from vllm.fork.processes.worker_replies import taking_all_replies
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request

_SEEN = "seen_weights"  # of an engine: the states of its workers


def letting_weights_change(core_class: type[EngineCore]) -> type[EngineCore]:
    """Decorate ``EngineCore``: what an engine does about new weights."""
    methods: Any = core_class  # whose own are replaced
    methods.add_request = refusing_bad_adapters(refusing_without_weights(core_class.add_request))
    methods.add_lora = noticing_new_adapters(core_class.add_lora)
    methods.collective_rpc = noticing_new_weights(core_class.collective_rpc)
    return core_class


def noticing_new_weights(rpc: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``EngineCore.collective_rpc``, which all updates of weights go through.

    If a call has changed weights, the engine's caches are dropped; requests that run go on with
    the new weights from their first token on, as after ``pause_generation(mode="keep")``. If the
    weights are those of no model now, requests that run end with an error, and
    `refusing_without_weights` refuses new ones.
    """

    rpc = taking_all_replies(rpc)

    @wraps(rpc)
    def call(core: EngineCore, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = rpc(core, IN_PLACE_OF_UPSTREAMS.get(method, method), *args, **kwargs)
        except Exception:
            with suppress(Exception):  # of workers that have ended: the call has its own error
                _notice(core)
            raise
        _notice(core)
        return result

    return call


def noticing_new_adapters(add_lora: Callable[..., bool]) -> Callable[..., bool]:
    """Decorate ``EngineCore.add_lora``: blocks of an adapter that is replaced have its name."""

    add_lora = taking_all_replies(add_lora)

    @wraps(add_lora)
    def add(core: EngineCore, lora_request: LoRARequest) -> bool:
        was_there = lora_request.lora_int_id in core.list_loras()
        added = add_lora(core, lora_request)
        if lora_request.load_inplace or not was_there:
            CheckedAdapters.of(core).take(lora_request)
        if lora_request.load_inplace:
            core.reset_prefix_cache(reset_running_requests=True)
        return added

    return add


def refusing_without_weights(add_request: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``EngineCore.add_request``: no answers while the weights are those of no model.

    It is called after all updates that were asked for before the request.

    Raises:
        ValueError: says what is wrong with them, in an engine of the client's own process; from
            one in another process the client gets an answer that says so.
    """

    return _refusing(add_request, lambda core, _: _refusal(core), ValueError)


def refusing_bad_adapters(add_request: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``EngineCore.add_request``: no step asks for an adapter that workers cannot load.

    Raises:
        VLLMValidationError: says what is wrong with it, in an engine of the client's own process.
    """

    return _refusing(
        add_request,
        lambda core, request: CheckedAdapters.of(core).refusal(request.lora_request),
        VLLMValidationError,
    )


def _refusing(
    add_request: Callable[..., None],
    refusal_of: Callable[[EngineCore, Request], str | None],
    error: type[Exception],
) -> Callable[..., None]:
    """Decorate ``EngineCore.add_request``: a request that is refused ends before it begins."""

    @wraps(add_request)
    def add(core: EngineCore, request: Request, *args: Any, **kwargs: Any) -> None:
        reason = refusal_of(core, request)
        if reason is None:
            add_request(core, request, *args, **kwargs)
        elif hasattr(core, "output_queue"):
            _answer(core, request, reason)
        else:
            raise error(reason)

    return add


def _refusal(core: EngineCore) -> str | None:
    """Return why there are no answers; None if there are."""
    for _, obstacle in getattr(core, _SEEN, ()):
        if obstacle is not None:
            return REFUSED + obstacle
    return None


def _answer(core: Any, request: Request, reason: str) -> None:
    """Let the client of a request, in another process, know why it has no answer."""
    output = EngineCoreOutput(
        request.request_id, [], finish_reason=FinishReason.ERROR, stop_reason=reason
    )
    outputs = EngineCoreOutputs(outputs=[output], finished_requests={request.request_id})
    core.output_queue.put_nowait((request.client_index, outputs))


def _notice(core: EngineCore) -> None:
    states: list[State] = core.model_executor.collective_rpc(weights_state)
    if states == getattr(core, _SEEN, [AS_LOADED] * len(states)):
        return
    setattr(core, _SEEN, states)
    if (reason := _refusal(core)) is not None:
        for request in core.scheduler.finish_requests(None, RequestStatus.FINISHED_ERROR):
            if hasattr(core, "output_queue"):
                _answer(core, request, reason)
    core.reset_prefix_cache(reset_running_requests=True)
    core.reset_mm_cache()
