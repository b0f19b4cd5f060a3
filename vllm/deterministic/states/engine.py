"""What an engine may not be asked for, whose model's layers keep states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_states(vllm_config: VllmConfig) -> None:
    """Refuse what layers with states do not have in deterministic mode, before anything starts.

    Raises:
        ValueError: it is asked for; the sentence says what to leave out.
    """
    if not ForkFlags.of(vllm_config).is_portable or not vllm_config.model_config.has_inner_state:
        return
    for advice, (is_given, reason) in _excluded(vllm_config).items():
        if is_given:
            raise ValueError(
                f"deterministic=True: layers of this model keep states, and {reason}: {advice}."
            )


def _excluded(vllm_config: VllmConfig) -> dict[str, tuple[bool, str]]:
    """Return whether each thing is asked for, and why it is not there, by what to do."""
    return {
        "leave the flag out, or run it on a CPU": (
            not current_platform.is_cpu(),
            "they are specified for CPUs, and GPUs have no kernels yet",
        ),
        "use tensor_parallel_size=1": (
            vllm_config.parallel_config.tensor_parallel_size > 1,
            "states are not split between ranks",
        ),
        "leave speculative_config out": (
            vllm_config.speculative_config is not None,
            "a rejected draft would stay in them",
        ),
        "leave enable_lora out": (
            vllm_config.lora_config is not None,
            "adapters are not tested with them",
        ),
    }
