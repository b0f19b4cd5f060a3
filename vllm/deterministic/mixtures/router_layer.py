"""Router layers with portable bits: one product, whatever kernels vLLM has for their shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from vllm.config import ModelConfig
from vllm.deterministic import fusion
from vllm.deterministic.linear import PortableLinearMethod
from vllm.fork_kernels.portable.product import PackedWeight, portable_product
from vllm.hf_layers.models import facts_of
from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear


class PortableRouterMethod(PortableLinearMethod):
    """Packs a router's weight as the numbers that Transformers loads.

    Args:
        dtype: of these numbers; vLLM keeps some routers in float32, whatever the model's dtype.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """As in `PacksWeights`."""
        super().pack_again(layer, name, part, rows.to(self._dtype))

    def _pack(self, layer: Any, weight: torch.Tensor) -> PackedWeight:
        return super()._pack(layer, weight.to(self._dtype))


def use_portable_router_layer(name: str, layer: GateLinear, model: ModelConfig) -> None:
    """Give a router layer, which is not loaded yet, portable bits.

    Logits are rounded once, to the dtype that the model asks for, or the model's where Transformers
    does so.

    Args:
        name: of the layer.
        layer: unquantised.
        model: whose class in Transformers says whether a weight stays in float32.
    """
    is_kept = _stays_in_float32(f"{name}.weight", model.hf_text_config)
    layer.quant_method = PortableRouterMethod(torch.float32 if is_kept else model.dtype)
    if facts_of(model.hf_text_config).rounds_router_logits:
        layer.out_dtype = model.dtype
    layer.forward = partial(_forward, layer)


def _stays_in_float32(name: str, config: PreTrainedConfig) -> bool:
    """Return whether Transformers loads a weight in float32 (``_keep_in_fp32_modules_strict``)."""
    model = AutoModelForCausalLM._model_mapping.get(type(config), None)
    kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    return any(part in name for part in kept)


def _forward(layer: Any, x: torch.Tensor) -> Any:
    method = layer.quant_method
    dtype = layer.out_dtype or layer.weight.dtype
    fusion.takes(method.packed, x)
    bias = None if layer.skip_bias_add else layer.bias
    logits = portable_product(x, method.packed, bias, dtype)
    if not layer.return_bias:
        return logits
    return logits, layer.bias if layer.skip_bias_add else None
