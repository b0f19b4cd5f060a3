"""Says to vLLM which attention backends need its compiled kernels, so that it takes another."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backend import AttentionBackend

REASON = (
    "its kernels are left out of this installation (VLLM_KERNELS=source): use TRITON_ATTN, or "
    "install with VLLM_KERNELS=all"
)


class LeftOutBackend(AttentionBackend):
    """In the place of a backend: fits no model."""

    @classmethod
    def validate_configuration(cls, *_: Any, **__: Any) -> list[str]:
        """Return the reason for every configuration (``AttentionBackend``)."""
        return [REASON]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Encoders of images ask for this alone."""
        return False
