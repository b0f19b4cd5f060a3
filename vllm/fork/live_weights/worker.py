"""What a worker does about new weights where upstream's methods know no packed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.fork.live_weights.registry import live_weights_of

State = tuple[int, str | None]
"""A version of the weights, and why there are no answers with them; None if there are."""

AS_LOADED: State = (0, None)


def weights_state(worker: Any) -> State:
    """Return the state of the weights of a worker's model; called in the worker."""
    live = live_weights_of(worker.model_runner.get_model())
    return AS_LOADED if live is None else (live.version, live.obstacle())


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


IN_PLACE_OF_UPSTREAMS: dict[Any, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        compute_weight_checksums,
        reset_weights,
        init_weight_transfer_engine,
        finish_weight_update,
    )
}
"""Of the methods of workers that upstream calls by name."""
