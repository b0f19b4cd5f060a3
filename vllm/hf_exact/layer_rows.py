"""Decoder layers of Transformers' models that compute a group's single tokens as one operator.

It is the operator of `vllm.hf_numerics.decoder_rows`, with the bits that the layer's own modules
give each request alone; whether it has them is tried with the whole model when the engine starts
(`self_check`). It takes queries, keys and values from one weight, gate and up from another: so the
layer's own parameters become views of these.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from vllm.fork_ops.decoder_layer import LayerWeights, RowOrder, decoder_layer_rows
from vllm.fork_ops.ordered_products import SumOrder
from vllm.hf_exact.group import Group
from vllm.hf_exact.grouped_decode import GroupCache
from vllm.hf_numerics.layer_parts import LayerParts, counts_without_remainder
from vllm.hf_numerics.linear import common_order
from vllm.hf_numerics.paged_attention import adds_in_order, order_in_float32
from vllm.hf_numerics.single_row_products import RowPlan, layout_of, placed

_KINDS = {
    f"transformers.models.{name.lower()}.modeling_{name.lower()}.{name}DecoderLayer"
    for name in ("Llama", "Mistral", "Qwen2", "Qwen3")
}
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class SideBySide:
    """Weights of linear layers with the same input, one below the other.

    Args:
        layers: whose parameters become views.
    """

    def __init__(self, layers: list[nn.Linear]) -> None:
        self._layers = layers
        self._places: list[int] = []
        self._join()

    # Not inference tensors, which could not be written to elsewhere.
    @torch.inference_mode(False)
    @torch.no_grad()
    def _join(self) -> None:
        self._weight = _joined([layer.weight for layer in self._layers])
        biases = [layer.bias for layer in self._layers if layer.bias is not None]
        self._bias = _joined(biases) if biases else None
        self._places = self._pointers()

    def _pointers(self) -> list[int]:
        own = [one for layer in self._layers for one in layer._parameters.values()]
        return [one.data_ptr() for one in own if one is not None]

    @property
    def parameters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias of all; parameters may have been given other memory since."""
        if self._pointers() != self._places:
            self._join()
        return self._weight, self._bias


def _joined(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one tensor [sum of lengths, ...] of which these become views, each at the same place
    in a line of a cache as before, on which bits of float32 may depend: see `keep_their_places`.
    """
    _, stride, dtype, device, place = layout_of(parameters[0])
    shape = torch.Size((sum(map(len, parameters)), *parameters[0].shape[1:]))
    whole = placed(shape, stride, dtype, device, place)
    for one, part in zip(parameters, whole.split([len(one) for one in parameters]), strict=True):
        one.data = part.copy_(one.data)
    return whole


def keep_their_places(weights: Sequence[torch.Tensor]) -> bool:
    """Whether weights lie where they do in a line of a cache when they are one behind the other."""
    *_, place = layout_of(weights[0])
    for weight in weights:
        if layout_of(weight)[-1] != place:
            return False
        if weight.dtype == torch.float32:
            place = (place + weight.numel() * weight.element_size()) % 64
    return True


class LayerRows:
    """Stands in for the ``forward`` of a decoder layer.

    Args:
        layer: for which `can_compute` holds.
        group: what the model computes.
    """

    def __init__(self, layer: Any, group: Group) -> None:
        self._forward = layer.forward
        self._layer = layer
        self._group = group
        self._parts = LayerParts(layer)
        attention, mlp = layer.self_attn, layer.mlp
        # Before weights are moved: an order may depend on where they are.
        found = (_order(products) for products in _products(layer))
        self._orders = [order for order in found if order is not None]
        self._attention_order = _attention_order(attention)
        self._qkv = SideBySide([attention.q_proj, attention.k_proj, attention.v_proj])
        self._gate_up = SideBySide([mlp.gate_proj, mlp.up_proj])
        others = [layer.input_layernorm, layer.post_attention_layernorm]
        if hasattr(attention, "q_norm"):
            others += [attention.q_norm, attention.k_norm]
        self._others = [one._parameters for one in (*others, attention.o_proj, mlp.down_proj)]
        self._parameters: list[torch.Tensor | None] = []
        self._made: LayerWeights | None = None
        self._counts = counts_without_remainder(mlp.down_proj.in_features)

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As ``LlamaDecoderLayer.forward``; hidden_states: [num_requests, 1, hidden_size]."""
        cache, angles = kwargs.get("past_key_values"), kwargs.get("position_embeddings")
        if (
            self._group.has_rows
            and len(hidden_states) in self._counts
            and isinstance(cache, GroupCache)
            and angles is not None
            and self._parts.are_unchanged
        ):
            return self._compute(hidden_states[:, 0], cache, angles)[:, None]
        output: torch.Tensor = self._forward(hidden_states, *args, **kwargs)
        return output

    def _compute(
        self, x: torch.Tensor, cache: GroupCache, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        attention = self._layer.self_attn
        pages, places = cache.rows_of(attention.layer_idx)
        positions, cos_sin = cache.angles_of(angles)
        added, total = decoder_layer_rows(
            x,
            None,
            self._weights,
            positions,
            cos_sin,
            pages.kv_cache,
            places,
            is_neox=True,
            scale=attention.scaling,
        )
        return total + added

    @property
    def _weights(self) -> LayerWeights:
        """What the layer computes with now."""
        found: list[Any] = [*self._qkv.parameters, *self._gate_up.parameters]
        found += [one[name] for one in self._others for name in one]
        if self._made is None or any(map(operator.is_not, found, self._parameters)):
            self._parameters, self._made = found, self._weights_of(found)
        return self._made

    def _weights_of(self, parameters: list[Any]) -> LayerWeights:
        layer, (qkv, output, gate_up, down) = self._layer, self._orders
        norms = layer.input_layernorm, layer.post_attention_layernorm
        joined, joined_bias, gates, gates_bias = parameters[:4]
        return LayerWeights(
            norms[0].weight,
            joined,
            joined_bias,
            qkv,
            *_head_norms(layer.self_attn),
            layer.self_attn.o_proj.weight,
            layer.self_attn.o_proj.bias,
            output,
            norms[1].weight,
            gates,
            gates_bias,
            gate_up,
            layer.mlp.down_proj.weight,
            layer.mlp.down_proj.bias,
            down,
            norms[0].variance_epsilon,
            norms[1].variance_epsilon,
            self._attention_order,
        )


def _head_norms(attention: Any) -> tuple[torch.Tensor | None, torch.Tensor | None, float]:
    """Return the norms of queries and keys, if there are any, and their epsilon."""
    if (query := getattr(attention, "q_norm", None)) is None:
        return None, None, 0.0
    return query.weight, attention.k_norm.weight, query.variance_epsilon


def can_compute(layer: Any, attention_name: str) -> bool:
    """Whether the operator is what a layer computes, with the kernels that this CPU has.

    Args:
        layer: a module of a Transformers model.
        attention_name: of the model's implementation.
    """
    if f"{type(layer).__module__}.{type(layer).__qualname__}" not in _KINDS:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    products = [one for parts in _products(layer) for one in parts]
    heads = attention.q_proj.out_features // attention.head_dim
    dtype = attention.q_proj.weight.dtype
    return (
        attention_name == "sdpa"
        and attention.head_dim <= 256  # Transformers repeats larger heads
        and all(type(one) is nn.Linear and one.weight.dtype == dtype for one in products)
        and dtype in _DTYPES
        and all(one.weight.device.type == "cpu" for one in products)
        and type(mlp.act_fn).__name__ == "SiLUActivation"
        and adds_in_order(heads, heads // attention.num_key_value_groups, attention.head_dim, dtype)
        and all(_order(parts) is not None for parts in _products(layer))
        and all(keep_their_places([one.weight for one in parts]) for parts in _products(layer))
    )


def _attention_order(attention: Any) -> torch.Tensor | None:
    if attention.q_proj.weight.dtype != torch.float32:
        return None
    heads = attention.q_proj.out_features // attention.head_dim
    return order_in_float32(heads, heads // attention.num_key_value_groups, attention.head_dim)


def _products(layer: Any) -> list[list[Any]]:
    """Return the linear layers of a decoder layer, those with the same input together."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    return [qkv, [attention.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]]


def _order(layers: list[Any]) -> RowOrder | None:
    """Return the order in which rows have the bits of each layer; None if there is none."""
    if len({layer.bias is None for layer in layers}) > 1:
        return None
    if layers[0].weight.dtype == torch.float32:
        plans = [RowPlan.of_weight(one.weight.data, one.bias is not None) for one in layers]
        orders = [plan.order for plan in plans if isinstance(plan.order, SumOrder)]
        if len(orders) < len(plans):
            return None
        return RowOrder(0, SumOrder.one_behind_the_other(orders).tensor)
    order = common_order(layers)
    return None if order is None else RowOrder(order)
