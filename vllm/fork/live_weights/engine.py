"""What an engine does about new weights: caches of the old ones go, and no answer is mixed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from vllm.fork.live_weights.registry import REFUSED, live_weights_of
from vllm.fork.worker_replies import taking_all_replies
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request

State = tuple[int, str | None]
"""A version of the weights, and why there are no answers with them; None if there are."""

_AS_LOADED: State = (0, None)
_SEEN = "seen_weights"  # of an engine: the states of its workers


def compute_weight_checksums(worker: Any) -> dict[str, str]:
    """As upstream's method of a worker, which knows no packed weights.

    Raises:
        ValueError: the model has some, so that the digests would be those of no numbers.
    """
    live = live_weights_of(worker.model_runner.get_model())
    if live is not None and live.packs_weights:
        raise ValueError(
            "The weights of this engine have no checksums, since it keeps them packed: compare its "
            "logprobs with those of the trainer, or of a fresh engine."
        )
    return dict(worker.compute_weight_checksums())


def reset_weights(worker: Any) -> None:
    """As upstream's method of a worker, after which there are no answers until weights come."""
    live = live_weights_of(worker.model_runner.get_model())
    if live is None:
        worker.reset_weights()
    else:
        live.discard("The weights were reset.")


def init_weight_transfer_engine(worker: Any, init_info: dict[str, Any]) -> None:
    """As upstream's method of a worker; the trainer takes the place of one that ended midway."""
    _end_update(worker)
    worker.init_weight_transfer_engine(init_info)


def finish_weight_update(worker: Any) -> None:
    """As upstream's method of a worker, which takes an update whose end failed as going on."""
    try:
        worker.finish_weight_update()
    except Exception:
        _end_update(worker)
        raise


def _end_update(wrapper: Any) -> None:
    worker = wrapper.worker
    if worker.weight_transfer_engine is not None and worker._weight_update_active:
        worker.weight_transfer_engine.reset_weight_update_target()
        worker._weight_update_active = False


_OURS = {
    one.__name__: one
    for one in (
        compute_weight_checksums,
        reset_weights,
        init_weight_transfer_engine,
        finish_weight_update,
    )
}
"""Methods of workers that upstream calls by name."""


def weights_state(worker: Any) -> State:
    """Return the state of the weights of a worker's model; called in the worker."""
    live = live_weights_of(worker.model_runner.get_model())
    return _AS_LOADED if live is None else (live.version, live.obstacle())


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
            result = rpc(core, _OURS.get(method, method), *args, **kwargs)
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
        added = add_lora(core, lora_request)
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

    @wraps(add_request)
    def add(core: EngineCore, request: Request, *args: Any, **kwargs: Any) -> None:
        reason = _refusal(core)
        if reason is None:
            add_request(core, request, *args, **kwargs)
        elif hasattr(core, "output_queue"):
            _answer(core, request, reason)
        else:
            raise ValueError(reason)

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
    if states == getattr(core, _SEEN, [_AS_LOADED] * len(states)):
        return
    setattr(core, _SEEN, states)
    if (reason := _refusal(core)) is not None:
        for request in core.scheduler.finish_requests(None, RequestStatus.FINISHED_ERROR):
            if hasattr(core, "output_queue"):
                _answer(core, request, reason)
    core.reset_prefix_cache(reset_running_requests=True)
    core.reset_mm_cache()
