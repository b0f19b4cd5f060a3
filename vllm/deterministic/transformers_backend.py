"""Modules of Transformers' own that vLLM's Transformers backend keeps."""

from __future__ import annotations

from torch import nn

from vllm.deterministic.attached.activation import function_of
from vllm.deterministic.attached.form import Form
from vllm.deterministic.attached.norm import adopt_norm
from vllm.deterministic.attached.rotary import portable_rotary, use_rotations
from vllm.deterministic.elementwise import PortableActivation


def portable_hf_module(name: str, module: nn.Module, max_length: int) -> nn.Module | None:
    """Return what takes the place of a module of Transformers, or the module; None for others.

    Its rotations are made portable in the file that has its code.

    Args:
        name: of the module.
        module: of a model of vLLM.
        max_length: tokens of the longest sequence.

    Raises:
        ValueError: it rotates in a way that is not specified.
    """
    if not type(module).__module__.startswith("transformers."):
        return None
    use_rotations(module)
    if (function := function_of(module)) is not None:
        return PortableActivation(function)
    adopt_norm(module)
    return module if isinstance(module, Form) else portable_rotary(name, module, max_length)
