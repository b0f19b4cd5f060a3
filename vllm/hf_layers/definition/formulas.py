"""Formulas that vLLM's class of a model has otherwise than Transformers', whatever the dtype."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.models.bloom.modeling_bloom import bloom_gelu_forward

from vllm.fork.flags.fork_flags import IS_TWIN, ForkFlags
from vllm.fork.models.modules import replace_modules
from vllm.hf_layers.definition.attention_layers import attention_layers
from vllm.hf_layers.definition.attn_implementation import attn_implementation
from vllm.hf_layers.definition.checkpoints import begin_with_hf_biases
from vllm.hf_layers.definition.epsilons import use_hf_epsilons
from vllm.hf_layers.definition.stablelm import use_stablelm2_layers
from vllm.hf_layers.definition.windows import use_hf_windows
from vllm.hf_layers.engine.model_fields import asked_for
from vllm.hf_layers.layers.activations import by_request
from vllm.hf_layers.layers.rotary import check_positions, takes_few_tokens_at_once, use_each_head
from vllm.logger import init_logger
from vllm.model_executor.layers.activation import GELU, XIELU
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.config import VllmConfig

logger = init_logger(__name__)


class BloomGELU(nn.Module):
    """GELU by a hyperbolic tangent, in the roundings of Transformers' ``BloomGelu``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of each element of x, of its shape and dtype."""
        return by_request(bloom_gelu_forward, x)


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
        from vllm.hf_layers.definition.routing import (
            use_corrections,  # experts import what imports this
        )

        _rotate_each_head(model)
        use_corrections(model)
    if config.model_type == "bloom":
        _use_bloom_gelu(model)
    elif config.model_type == "apertus":
        _use_dtype_of_model(model, vllm_config.model_config.dtype)
    elif config.model_type == "falcon":
        _add_biases_to_products(model)
    elif config.model_type == "gemma3n_text":
        _embed_each_layer(model, config)
    elif config.model_type == "gpt2":
        _use_gpt2_scales(model, config)
    elif config.model_type == "ministral3":
        _round_scales(model, vllm_config.model_config.dtype)
    elif config.model_type == "phimoe" and getattr(config, "lm_head_bias", False):
        _add_bias_of_head(model)
    elif config.model_type == "stablelm":
        use_stablelm2_layers(model, config)


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


def _use_dtype_of_model(model: nn.Module, dtype: torch.dtype) -> None:
    """vLLM keeps the parameters of xIELU in bfloat16 beside layers of any dtype."""
    for layer in model.modules():
        if isinstance(layer, XIELU):
            layer.to(dtype)


def _use_bloom_gelu(model: nn.Module) -> None:
    """vLLM's BLOOM has the exact GELU, which is up to 5e-4 away from its approximation."""
    for parent in model.modules():
        if isinstance(getattr(parent, "gelu_impl", None), GELU):
            parent.gelu_impl = BloomGELU()


def _add_biases_to_products(model: nn.Module) -> None:
    """vLLM's Falcon adds up a layer's products, and then their biases."""
    for layer in model.modules():
        if isinstance(layer, LinearBase):
            layer.skip_bias_add = False


def _embed_each_layer(model: Any, config: PreTrainedConfig) -> None:
    """Give each layer what it embeds of the tokens: vLLM's ``Gemma3nForCausalLM`` leaves that to
    its multimodal class.
    """
    decoder = getattr(getattr(model, "model", None), "self_decoder", None)
    if decoder is not None:
        shape = (-1, config.num_hidden_layers, config.hidden_size_per_layer_input)
        decoder.forward = partial(_forward_with_embeddings, decoder, decoder.forward, shape)


def _forward_with_embeddings(
    decoder: Any,
    forward: Callable[..., Any],
    shape: tuple[int, int, int],
    input_ids: torch.Tensor | None,
    positions: torch.Tensor,
    inputs_embeds: torch.Tensor | None = None,
    per_layer_inputs: torch.Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """As ``Gemma3nSelfDecoder.forward``."""
    if per_layer_inputs is None and input_ids is not None:
        per_layer_inputs = decoder.get_per_layer_input_embeddings(input_ids).reshape(shape)
    return forward(input_ids, positions, inputs_embeds, per_layer_inputs, **kwargs)


def _use_gpt2_scales(model: nn.Module, config: PreTrainedConfig) -> None:
    """Scale scores as ``GPT2Attention`` does: vLLM's knows one scale for all layers."""
    for number, layer in attention_layers(model):
        scale = layer.head_size**-0.5 if config.scale_attn_weights else 1.0
        if asked_for(config, "scale_attn_by_inverse_layer_idx"):
            scale /= number + 1
        layer.impl.scale = scale


def _round_scales(model: nn.Module, dtype: torch.dtype) -> None:
    """Multiply queries by scales in the model's dtype, as ``Ministral3Attention`` does."""
    from vllm.model_executor.models.mistral import MistralAttention  # it imports what imports this

    for layer in model.modules():
        if isinstance(layer, MistralAttention):
            layer._get_llama_4_attn_scale = partial(
                _rounded, layer._get_llama_4_attn_scale, dtype=dtype
            )


def _rounded(
    scales: Callable[[torch.Tensor], torch.Tensor], positions: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return scales(positions).to(dtype)


def _add_bias_of_head(model: Any) -> None:
    """Add the bias of the last layer, which vLLM's Phi-3.5-MoE loads and does not use."""
    if hasattr(model, "lm_head"):
        model.compute_logits = partial(_biased_logits, model)


def _biased_logits(model: Any, hidden_states: torch.Tensor) -> torch.Tensor | None:
    """As ``compute_logits`` of vLLM's models."""
    logits: torch.Tensor | None = model.logits_processor(
        model.lm_head, hidden_states, model.lm_head.bias
    )
    return logits
