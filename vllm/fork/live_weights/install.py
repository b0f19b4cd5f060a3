"""Which engines let their weights change."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.live_weights.arguments import RECEIPTS, named
from vllm.fork.live_weights.model import LiveWeights
from vllm.fork.live_weights.registry import remember_live_weights
from vllm.fork.live_weights.upstream_layers import UnknownPacking
from vllm.fork.startup.checkpoint_files import use_hf_files
from vllm.logger import init_logger
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

logger = init_logger(__name__)


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
        _refuse(runner, RECEIPTS)
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
                f"the weights of an engine with {named(flags)} cannot be changed, since {error}: "
                "start a new engine with the new weights.",
            )
        return
    runner.reload_weights = _in_checkpoint_format(runner)


def _in_checkpoint_format(runner: GPUModelRunner) -> Callable[..., None]:
    reload = runner.reload_weights

    @wraps(reload)
    def reload_weights(*args: Any, **kwargs: Any) -> None:
        if not kwargs.get("is_checkpoint_format", len(args) < 3 or args[2]):
            raise ValueError(
                "reload_weights(is_checkpoint_format=False) writes into parameters by itself, and "
                "layers keep what was made of them: give the weights as a checkpoint has them."
            )
        checkpoint = kwargs.get("weights_path", args[1] if len(args) > 1 else None)
        _check_folder(checkpoint)
        if ForkFlags.of(runner.vllm_config).has_hf_definition:
            use_hf_files(runner.get_model(), runner.vllm_config, checkpoint)
        reload(*args, **kwargs)

    return reload_weights


def _check_folder(name: str | None) -> None:
    """Raise a ``ValueError`` if a path that cannot be the name of a model of the Hub is not there,
    where a name of the Hub would be looked for.
    """
    if name is None or Path(name).exists():
        return
    if name.startswith((".", "~", "/")) or name.count("/") > 1:
        raise ValueError(f"There is no checkpoint {name}: nothing was changed.")


def _refuse(runner: GPUModelRunner, reason: str) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ValueError(reason)

    runner.reload_weights = refuse
    runner.get_model().load_weights = refuse
