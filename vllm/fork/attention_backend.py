"""Attention backends that the fork adds to vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.config.attention import AttentionConfig
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs


def chosen_backends(args: EngineArgs) -> set[AttentionBackendEnum]:
    """Return what the user has chosen, by either of two arguments; nothing if neither is given."""
    chosen = AttentionConfig.validate_backend_before(args.attention_backend)
    return {chosen, args.attention_config.backend} - {None}


def check_attention_backend(args: EngineArgs) -> None:
    """Refuse XFORMERS where it would not be used: on CPUs vLLM ignores what is chosen.

    Raises:
        ValueError: it is chosen, and the platform is no NVIDIA GPU.
    """
    if AttentionBackendEnum.XFORMERS in chosen_backends(args) and not current_platform.is_cuda():
        raise ValueError(
            "The attention backend XFORMERS has kernels for NVIDIA GPUs alone: leave it out here."
        )
