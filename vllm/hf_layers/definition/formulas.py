"""Formulas that vLLM's class of a model has otherwise than Transformers', whatever the dtype."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from vllm.fork.flags.fork_flags import IS_TWIN, ForkFlags
from vllm.fork.models.modules import replace_modules
from vllm.hf_layers.definition.attn_implementation import attn_implementation
from vllm.hf_layers.definition.checkpoints import begin_with_hf_biases
from vllm.hf_layers.definition.epsilons import use_hf_epsilons
from vllm.hf_layers.definition.of_type import mend_type
from vllm.hf_layers.definition.windows import use_hf_windows
from vllm.hf_layers.layers.rotary import check_positions, takes_few_tokens_at_once, use_each_head
from vllm.logger import init_logger
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)


def use_hf_formulas(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Make the layers of `model`, which is not loaded yet, compute what Transformers computes.

    Raises:
        ValueError: see `check_positions`.
    """
    flags, model_config = ForkFlags.of(vllm_config), vllm_config.model_config
    begin_with_hf_biases(model)
    # A twin's lengths are not the model's; a tower has positions of its own.
    if not model_config.is_multimodal_model and IS_TWIN not in vllm_config.additional_config:
        check_positions(model, model_config.max_model_len, flags.as_given)
    has_caps = attn_implementation(model_config) not in (None, "sdpa")
    if flags.has_hf_layers and not has_caps:  # attach() caps in any case
        _drop_soft_caps(model)
    config = model_config.hf_text_config
    use_hf_windows(model, config)
    use_hf_epsilons(model, config)
    if current_platform.is_cpu():
        # Experts import what imports this module.
        from vllm.hf_layers.definition.routing import use_corrections

        _rotate_each_head(model)
        use_corrections(model)
    mend_type(model, vllm_config)


def _drop_soft_caps(model: nn.Module) -> None:
    """Leave attention scores as they are (Gemma 2's, for one), as ``sdpa_attention_forward`` does,
    which takes no ``softcap``; it is what Transformers chooses unless asked otherwise.
    """
    for layer in model.modules():
        implementation: Any = getattr(layer, "impl", None)
        if getattr(implementation, "logits_soft_cap", None):
            implementation.logits_soft_cap = 0
            logger.info_once(
                "Attention scores are not capped, as with Transformers' "
                'attn_implementation="sdpa"; hf_overrides={"attn_implementation": "eager"} caps '
                "them."
            )


def _rotate_each_head(model: nn.Module) -> None:
    def with_each_head(_: str, layer: nn.Module) -> nn.Module | None:
        # Others rotate by themselves, and look at the last dimension.
        if not isinstance(layer, RotaryEmbedding) or not takes_few_tokens_at_once(type(layer)):
            return None
        layer = copy(layer)  # vLLM keeps these for the next model of the process
        use_each_head(layer)
        return layer

    replace_modules(model, with_each_head)
