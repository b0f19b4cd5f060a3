"""The configuration of a model, before the engine's is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.engine.arg_utils import EngineArgs


def config_of(args: EngineArgs) -> PreTrainedConfig:
    """Return Transformers' configuration of the model that `args` name, with their overrides."""
    overrides = args.hf_overrides
    return get_config(
        args.hf_config_path or args.model,
        args.trust_remote_code,
        args.revision,
        args.code_revision,
        args.config_format,
        hf_overrides_kw=None if callable(overrides) else overrides,
        hf_overrides_fn=overrides if callable(overrides) else None,
    )


def num_experts(config: PreTrainedConfig) -> int:
    """Return the experts of each layer of a model, as ``ModelConfig.is_moe`` counts them."""
    kind = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    return int(kind(config, config.get_text_config()).get_num_experts())
