"""What is asked of new weights, and refused before anything is loaded or written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

RECEIPTS = (
    "the weights of an engine with receipts=True cannot be changed, since receipts say which "
    "weights it was started with: start a new engine with the new weights."
)

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
        raise ValueError(f"weight_transfer_config: {RECEIPTS}")
    backend = config["backend"] if isinstance(config, dict) else config.backend
    if backend not in _TRANSFERS:
        raise ValueError(
            f"weight_transfer_config: the backend {backend!r} writes into parameters by itself, "
            f"and layers of {named(flags)} keep what was made of them: use one of "
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
        raise ValueError(f"sleep(level={level}) would discard the weights: {RECEIPTS}")
    if flags.is_portable and not current_platform.is_cpu():
        raise ValueError(
            f"sleep(level={level}) would discard the tables of deterministic=True, which no "
            "checkpoint has: use sleep(level=1), which keeps them."
        )


def named(flags: ForkFlags) -> str:
    """Return the flag that decides how layers keep their weights, as it is written in Python."""
    if flags.is_portable:
        return "deterministic=True"
    return flags.hf_compat_as_given if flags.hf_compat else "split_qkv=True"
