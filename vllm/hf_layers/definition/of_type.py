"""The definition of a type of models, where it takes code: the module that the type's row names."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from torch import nn

from vllm.hf_layers.models import facts_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.config import VllmConfig


def configure_type(vllm_config: VllmConfig) -> None:
    """Change the configuration of an engine as the model's type needs it, in place."""
    module = _module_of(vllm_config.model_config.hf_text_config)
    if module is not None and hasattr(module, "configure"):
        module.configure(vllm_config)


def mend_type(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Change a model that is not loaded yet as its type needs it, in place."""
    module = _module_of(vllm_config.model_config.hf_text_config)
    if module is not None and hasattr(module, "mend"):
        module.mend(model, vllm_config)


def _module_of(config: PreTrainedConfig) -> ModuleType | None:
    name = facts_of(config).definition
    return import_module(f"{__package__}.{name}") if name else None
