"""Which norm a layer is: vLLM's Transformers backend has subclasses that gather parts."""

from __future__ import annotations

from torch import nn

from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

_GATHERING = "vllm.model_executor.models.transformers.fusers.rms_norm"


def norm_kind(layer: nn.Module) -> type[nn.Module]:
    """Return the class whose arithmetic a layer has: its own, but for those that gather only."""
    kind = type(layer)
    if kind.__module__ == _GATHERING:
        return next((base for base in (GemmaRMSNorm, RMSNorm) if issubclass(kind, base)), kind)
    return kind
