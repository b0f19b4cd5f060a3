"""Layers that give Triton memory when they are made, on CPUs, where there is no Triton.

Why: Those of OLMo hybrid do, so that a model of them ends in an AttributeError.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/triton-allocator-cpu.md).
Exit condition: Upstream makes these layers on CPUs.
"""

from __future__ import annotations

from typing import Any

from vllm import triton_utils


def accept_allocators() -> None:
    """Let what upstream has in the place of Triton take an allocator, which nothing will ask."""
    placeholder: Any = triton_utils.triton
    if not hasattr(placeholder, "set_allocator"):
        placeholder.set_allocator = lambda allocator: None
