"""Weights of a running engine: not to be changed where layers keep what was made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from vllm.fork.flags import ForkFlags

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def check_weight_transfer(args: EngineArgs, flags: ForkFlags) -> None:
    """Refuse to be sent weights, before anything is loaded.

    Raises:
        ValueError: ``weight_transfer_config`` is given with a flag that does not go with it.
    """
    reason = _reason(flags)
    if reason is not None and args.weight_transfer_config is not None:
        raise ValueError(f"weight_transfer_config: {reason}")


def refuse_weight_updates(runner: GPUModelRunner) -> None:
    """Let everything that would change the weights of a loaded model raise, and say what to do.

    vLLM writes to the parameters it knows, which is not all there is: packed integers, and parts of
    fused matrices, stay as they were, so that answers would be those of no model.

    Args:
        runner: whose model is loaded; without flags nothing changes.
    """
    reason = _reason(ForkFlags.of(runner.vllm_config))
    if reason is None:
        return

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ValueError(reason)

    runner.reload_weights = refuse
    runner.get_model().load_weights = refuse


def check_sleep(level: int, vllm_config: VllmConfig) -> None:
    """Refuse a sleep that discards the weights, which could not be given again.

    Args:
        level: of ``LLM.sleep``; 2 discards weights, 1 keeps them in the host's memory.
        vllm_config: of the engine; without flags nothing is refused.

    Raises:
        ValueError: the level is 2 or more, with a flag that does not go with new weights.
    """
    reason = _reason(ForkFlags.of(vllm_config))
    if level >= 2 and reason is not None:
        raise ValueError(
            f"sleep(level={level}) would discard the weights, and {reason[:-1]}; or use "
            "sleep(level=1), which keeps them."
        )


def _reason(flags: ForkFlags) -> str | None:
    """Return why the weights cannot be changed; None if they can."""
    if flags.is_portable:
        flag, why = "deterministic=True", "its layers keep integers that were made of them"
    elif flags.hf_compat == "exact":
        flag, why = flags.hf_compat_as_given, "Transformers has loaded them"
    elif flags.splits_projections:
        flag = flags.hf_compat_as_given if flags.hf_compat else "split_qkv=True"
        why = "its projections are parts of fused ones"
    else:
        return None
    return (
        f"the weights of an engine with {flag} cannot be changed, since {why}: start a new engine "
        "with the new weights."
    )
