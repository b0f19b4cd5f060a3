"""Makes a process ready to run without upstream's extensions."""

from __future__ import annotations

import functools
import os

import torch

from vllm.fork.source_kernels.namespaces import define_operators
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

_VARIABLES = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # its buffers on the host are views that a kernel makes
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""Of vLLM, where the user has not set them."""

_COMPILED = ("FLASH_ATTN", "FLASHMLA", "CUTLASS_MLA")
"""In the names of the attention backends that need upstream's extensions."""


@functools.cache
def install() -> tuple[torch.library.Library, ...]:
    """Define the operators and choose what does without the others, once in a process."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    for backend in AttentionBackendEnum:
        if any(part in backend.name for part in _COMPILED):
            register_backend(backend, "vllm.fork.source_kernels.attention.LeftOutBackend")
    return define_operators()
