"""Which layers with states have portable bits, and why others have not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from vllm.deterministic.refusal import refusal
from vllm.deterministic.states.convolution import ConvolutionMethod
from vllm.deterministic.states.delta_net import objection as objection_to_net
from vllm.deterministic.states.delta_net import use_olmo_net, use_qwen_net
from vllm.deterministic.states.mamba2 import objection as objection_to_mixer
from vllm.deterministic.states.mamba2 import use_mixer
from vllm.deterministic.states.metadata import StatesBackend
from vllm.deterministic.states.short_conv import use_short_conv
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn import (
    OlmoHybridGatedDeltaNetAttention,
)
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.layers.mamba.short_conv import ShortConv


class _Kind(NamedTuple):
    """A class of layers.

    Attributes:
        use: lets one compute with portable bits.
        convolution: the attribute that holds the weight of its convolution.
        objection: says why one cannot; None if it can.
    """

    use: Callable[[Any], None]
    convolution: str = "conv1d"
    objection: Callable[[Any], str | None] = lambda layer: None


_KINDS: dict[type[nn.Module], _Kind] = {
    MambaMixer2: _Kind(use_mixer, objection=objection_to_mixer),
    QwenGatedDeltaNetAttention: _Kind(use_qwen_net, objection=objection_to_net),
    OlmoHybridGatedDeltaNetAttention: _Kind(use_olmo_net, objection=objection_to_net),
    ShortConv: _Kind(use_short_conv, "conv"),
}
"""By exact class: a subclass may compute something else."""


def use_portable_states(name: str, layer: Any) -> None:
    """Give a layer with states, which is not loaded yet, portable bits.

    Args:
        name: of the layer.
        layer: a ``MambaBase``.

    Raises:
        ValueError: it cannot have them; the sentence names it.
    """
    if layer.get_attn_backend() is StatesBackend:
        return
    kind = _KINDS.get(type(layer))
    if kind is None:
        reason = (
            "states of this kind of layer are not specified; on CPUs "
            'hf_compat="exact" computes them, without deterministic=True'
        )
        raise refusal(name, layer, reason)
    if (objection := kind.objection(layer)) is not None:
        raise refusal(name, layer, objection)
    convolution = getattr(layer, kind.convolution)
    if type(convolution.quant_method) is not UnquantizedLinearMethod:
        raise refusal(name, layer, "its convolution is quantised")
    convolution.quant_method = ConvolutionMethod()
    kind.use(layer)
