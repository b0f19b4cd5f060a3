"""Gemma 3n: what each layer embeds of the tokens, and the norm of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm.model_executor.layers.layernorm import RMSNorm

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_SCALED_NORM = ".per_layer_projection_norm"
"""What it is given, ``Gemma3nTextModel.project_per_layer_inputs`` divides by the root of the width,
and vLLM does not.
"""


def mend(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Give each layer what it embeds: vLLM's ``Gemma3nForCausalLM`` leaves that to its multimodal
    class. The epsilon of a norm makes good for a division that vLLM leaves out before it.
    """
    config = vllm_config.model_config.hf_text_config
    for name, layer in model.named_modules():
        if isinstance(layer, RMSNorm) and name.endswith(_SCALED_NORM):
            layer.variance_epsilon = config.rms_norm_eps * config.hidden_size
    decoder: Any = getattr(getattr(model, "model", None), "self_decoder", None)
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
