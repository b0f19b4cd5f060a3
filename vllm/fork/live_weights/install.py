"""Which engines let their weights change, and what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

from vllm.fork.flags import ForkFlags
from vllm.fork.live_weights.model import LiveWeights
from vllm.fork.live_weights.registry import remember_live_weights
from vllm.fork.live_weights.upstream_layers import UnknownPacking
from vllm.logger import init_logger
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

logger = init_logger(__name__)

_TRANSFERS = ("gloo", "nccl", "ipc", "modelexpress")
"""Weight transfer engines that hand whole tensors to the model's loaders."""


def check_weight_transfer(args: EngineArgs, flags: ForkFlags) -> None:
    """Refuse to be sent weights in a way that does not go with a flag, before anything is loaded.

    Raises:
        ValueError: ``weight_transfer_config`` is given with such a flag.
    """
    config = args.weight_transfer_config
    if config is None or flags == ForkFlags():
        return
    if flags.receipts:
        raise ValueError(f"weight_transfer_config: {_RECEIPTS}")
    backend = config["backend"] if isinstance(config, dict) else config.backend
    if backend not in _TRANSFERS:
        raise ValueError(
            f"weight_transfer_config: the backend {backend!r} writes into parameters by itself, "
            f"and layers of {_named(flags)} keep what was made of them: use one of "
            f"{', '.join(map(repr, _TRANSFERS))}."
        )


def check_sleep(level: int, vllm_config: VllmConfig) -> None:
    """Refuse a sleep that discards more than weights that can be given again.

    Args:
        level: of ``LLM.sleep``; 2 discards weights, 1 keeps them in the host's memory.
        vllm_config: of the engine; without flags nothing is refused.

    Raises:
        ValueError: the level is 2 or more, and it would discard numbers that no checkpoint has.
    """
    flags = ForkFlags.of(vllm_config)
    if level < 2:
        return
    if flags.receipts:
        raise ValueError(f"sleep(level={level}) would discard the weights: {_RECEIPTS}")
    if flags.is_portable and not current_platform.is_cpu():
        raise ValueError(
            f"sleep(level={level}) would discard the tables of deterministic=True, which no "
            "checkpoint has: use sleep(level=1), which keeps them."
        )


def let_weights_change(runner: GPUModelRunner) -> None:
    """Let the weights of a loaded model change, or every way of changing them raise.

    Without flags upstream's own way stays, but on CPUs, where it cannot load layers that it has
    packed, and leaves tied heads as they were.

    Args:
        runner: whose model is loaded.
    """
    flags = ForkFlags.of(runner.vllm_config)
    if flags == ForkFlags() and not current_platform.is_cpu():
        return
    if flags.receipts:
        _refuse(runner, _RECEIPTS)
        return
    try:
        model = runner.get_model()
        remember_live_weights(model, LiveWeights(model))
    except UnknownPacking as error:
        if flags == ForkFlags():
            logger.debug("New weights come upstream's way, since %s.", error)
        else:
            _refuse(
                runner,
                f"the weights of an engine with {_named(flags)} cannot be changed, since {error}: "
                "start a new engine with the new weights.",
            )
        return
    runner.reload_weights = _in_checkpoint_format(runner.reload_weights)


def _in_checkpoint_format(reload: Callable[..., None]) -> Callable[..., None]:
    @wraps(reload)
    def reload_weights(*args: Any, **kwargs: Any) -> None:
        if not kwargs.get("is_checkpoint_format", len(args) < 3 or args[2]):
            raise ValueError(
                "reload_weights(is_checkpoint_format=False) writes into parameters by itself, and "
                "layers keep what was made of them: give the weights as a checkpoint has them."
            )
        reload(*args, **kwargs)

    return reload_weights


def _refuse(runner: GPUModelRunner, reason: str) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ValueError(reason)

    runner.reload_weights = refuse
    runner.get_model().load_weights = refuse


def _named(flags: ForkFlags) -> str:
    """Return the flag that decides how layers keep their weights, as it is written in Python."""
    if flags.is_portable:
        return "deterministic=True"
    return flags.hf_compat_as_given if flags.hf_compat else "split_qkv=True"


_RECEIPTS = (
    "the weights of an engine with receipts=True cannot be changed, since receipts say which "
    "weights it was started with: start a new engine with the new weights."
)
