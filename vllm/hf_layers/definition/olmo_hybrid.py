"""OLMo hybrid: checkpoints that vLLM's class does not load.

Why: Norms have other names in published checkpoints, and in those that Transformers writes; the
  three convolutions of a layer come without the number by which vLLM's class tells them apart; and
  Transformers, which has one, writes it in three parts of equal size, whatever their real sizes.
Upstream status: Bug in 0.32.0, to be reported.
Exit condition: Upstream loads what ``OlmoHybridForCausalLM.save_pretrained`` writes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn import (
    OlmoHybridGatedDeltaNetAttention,
)
from vllm.model_executor.models.utils import WeightsMapper

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_NORMS = WeightsMapper(
    orig_to_new_substr={
        ".attention_layer_norm": ".input_layernorm",
        ".feedforward_layer_norm": ".post_attention_layernorm",
    }
)
"""As in ``transformers.conversion_mapping``."""

_CONVOLUTIONS = 3


def mend(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Let vLLM's model load norms under both names, and convolutions one by one."""
    for module in model.modules():
        mapper: Any = getattr(module, "hf_to_vllm_mapper", None)
        if mapper is not None:
            module.hf_to_vllm_mapper = mapper | _NORMS
        if isinstance(module, OlmoHybridGatedDeltaNetAttention):
            weight: Any = module.conv1d.weight
            weight.weight_loader = partial(_load_convolution, weight.weight_loader)


def _load_convolution(upstream: Any, parameter: nn.Parameter, loaded: Any) -> None:
    """Load one of queries', keys' and values' convolutions, or a third of all rows.

    Args:
        upstream: vLLM's loader, which takes the number of the convolution as an argument.
        parameter: the weight of all three, [channels, 1, width].
        loaded: the weight of one, with the number that the mapper gave it.
    """
    number, rows = loaded.shard_id, len(loaded)
    third = -(-len(parameter) // _CONVOLUTIONS)
    start = number * third
    if rows == min(third, len(parameter) - start):
        parameter.data[start : start + rows] = loaded.view(rows, 1, -1)
    else:
        upstream(parameter, loaded, number)
