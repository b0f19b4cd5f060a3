"""The decoder layers of Transformers' models as one operator, for a group of tokens or prompts.

It is the operator of `vllm.hf_layers.decoder.decoder_rows`, with the bits that the layers' own
modules give each request alone; whether it has them is tried with the whole model when the engine
starts (`self_check`). It takes queries, keys and values from one weight, gate and up from another:
so the layers' own parameters become views of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from vllm.fork.models.followed import Followed, Source, places_of
from vllm.fork.models.llama_decoders import head_norms, layers_as_one, norms_of
from vllm.fork_kernels import rms_norm_rounded
from vllm.fork_kernels.layer_weights import Epsilons, LayerWeights, ProductWeights
from vllm.fork_kernels.torch_order.decoder_rows import DecoderWeights, RowsInPages, decoder_rows
from vllm.fork_kernels.torch_order.ordered_products import SumOrder
from vllm.hf_layers.attention.paged_attention import Heads, adds_in_order, order_in_float32
from vllm.hf_layers.decoder.rows_at_once import Product, StepsRowsAtOnce
from vllm.hf_layers.layers.linear import common_order, side_by_side
from vllm.hf_layers.products.single_row_products import RowPlan, layout_of, placed
from vllm.hf_layers.step_rows import Run
from vllm.hf_model.rotations import Rotation

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

_Order = tuple[int, torch.Tensor | None]
"""Of `Orders`, and of `ProductWeights.how` in float32."""


class SideBySide:
    """Weights of linear layers with the same input, one below the other.

    Args:
        layers: whose parameters become views, unless there is one layer only.
    """

    def __init__(self, layers: list[nn.Linear]) -> None:
        self._layers = layers
        self._places: list[int] = []

    # Not inference tensors, which could not be written to elsewhere.
    @torch.inference_mode(False)
    @torch.no_grad()
    def _join(self) -> None:
        self._weight = _joined([layer.weight for layer in self._layers])
        biases = [layer.bias for layer in self._layers if layer.bias is not None]
        self._bias = _joined(biases) if biases else None
        self._places = places_of(self.own)

    @property
    def own(self) -> list[torch.Tensor]:
        """The layers' own parameters."""
        found = [one for layer in self._layers for one in layer._parameters.values()]
        return [one for one in found if one is not None]

    @property
    def parameters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias of all; parameters may have been given other memory since."""
        if len(self._layers) == 1:
            return self._layers[0].weight, self._layers[0].bias
        if places_of(self.own) != self._places:
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


class _Layer:
    """What the operator takes of a layer.

    Args:
        layer: for which `_is_computed` holds.

    Attributes:
        sources: where the layer's own parameters are.
        orders: of its products.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        products = _products(layer)
        # Before weights are moved: an order may depend on where they are.
        found = [order for own in products if (order := _order(own)) is not None]
        self.orders: Any = tuple(number for number, _ in found)
        self._steps = [steps for _, steps in found]
        self._joined = [SideBySide(own) for own in products]
        self.sources: list[Source] = [
            *((norm._parameters, "weight") for norm in norms_of(layer)),
            *((one._parameters, name) for own in products for one in own
              for name in ("weight", "bias")),
        ]  # fmt: skip

    @property
    def weights(self) -> LayerWeights:
        """What the layer computes with now."""
        qkv, output, gate_up, down = (
            ProductWeights(weight, steps, bias)
            for (weight, bias), steps in zip(
                (one.parameters for one in self._joined), self._steps, strict=True
            )
        )
        query_norm, key_norm = [one.weight for one in head_norms(self._layer)] or [None, None]
        first, second, *_ = (one.weight for one in norms_of(self._layer))
        return LayerWeights(first, qkv, query_norm, key_norm, output, second, gate_up, down)


class DecoderRows:
    """Computes what the layers of a model do, and the norm behind them.

    Args:
        decoder: for which `can_compute` holds.
    """

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        first = decoder.layers[0]
        self._attention_order = _attention_order(first.self_attn)
        self._layers = [_Layer(layer) for layer in decoder.layers]
        sources = [source for layer in self._layers for source in layer.sources]
        self._weights = Followed(self._made, sources, by_memory=True)
        _ = self._weights.current  # weights are moved before anything reads them
        self.heads = _heads_of(first.self_attn)
        products = _products_of_prompts(first)
        self.takes_prompts = bool(products)
        width: int = first.mlp.down_proj.in_features
        self._at_once = StepsRowsAtOnce(lambda: products, width, self.heads.dtype)

    def __call__(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        pages: Sequence[torch.Tensor],
        places: Sequence[RowsInPages],
        prompts: tuple[Run, ...] = (),
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return what the model's head is given, [n, hidden_size].

        Args:
            x: [num_tokens, hidden_size].
            rotation: of each token.
            pages: of each layer.
            places: of the tokens in the pages of each layer.
            prompts: the rows of each; none if they are single tokens.
            kept: int64 [n], rows whose result is asked for; None of all.
        """
        added, total = decoder_rows(
            x,
            self._weights.current,
            rotation.rows,
            rotation.table,
            pages,
            places,
            is_neox=True,
            scale=self._decoder.layers[0].self_attn.scaling,
            at_once=self._at_once(prompts or ((True, 0, len(x)),)),
        )
        if kept is not None:
            added, total = added[kept], total[kept]
        norm = self._decoder.norm
        return rms_norm_rounded(added, norm.weight, norm.variance_epsilon, total)[0]

    def _made(self) -> DecoderWeights:
        norms = norms_of(self._decoder.layers[0])
        return DecoderWeights(
            [layer.weights for layer in self._layers],
            [layer.orders for layer in self._layers],
            Epsilons(*(norm.variance_epsilon for norm in norms[:3])),
            self._attention_order,
        )


def _products_of_prompts(layer: Any) -> list[Product]:
    """Return how a layer multiplies prompts; nothing in float32."""
    products = [
        (side_by_side(parts, [one.out_features for one in parts]), parts[0].bias is not None)
        for parts in _products(layer)
    ]
    return [(product.ways, has_bias) for product, has_bias in products if product is not None]


def can_compute(decoder: Any, attention_name: str) -> bool:
    """Whether the operator is what a model's layers compute, with the kernels that this CPU has.

    Args:
        decoder: of a Transformers model.
        attention_name: of the model's implementation.
    """
    return (
        attention_name == "sdpa"
        and all(map(computes_as_its_class, decoder.modules()))
        and layers_as_one(decoder, _is_computed, _shape_of) is not None
    )


def computes_as_its_class(module: nn.Module) -> bool:
    """Whether a module's ``forward`` is what its class was written with: others may patch it."""
    forward = type(module).forward
    if forward is nn.Module.forward:  # it is not called
        return True
    written = {(one.__module__, f"{one.__qualname__}.forward") for one in type(module).__mro__}
    return (forward.__module__, forward.__qualname__) in written


def _shape_of(layer: Any) -> tuple[Any, ...]:
    """Return what is the same in all layers that the operator computes at once."""
    attention = layer.self_attn
    return (
        *((one.weight.shape, one.bias is None) for parts in _products(layer) for one in parts),
        *(norm.variance_epsilon for norm in norms_of(layer)),
        attention.q_proj.weight.dtype,
        attention.scaling,
    )


def _is_computed(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    products = [one for parts in _products(layer) for one in parts]
    dtype = attention.q_proj.weight.dtype
    return (
        attention.head_dim <= 256  # Transformers repeats larger heads
        and all(type(one) is nn.Linear and one.weight.dtype == dtype for one in products)
        and dtype in _DTYPES
        and all(one.weight.device.type == "cpu" for one in products)
        and type(mlp.act_fn).__name__ == "SiLUActivation"
        and adds_in_order(_heads_of(attention))
        and all(_order(parts) is not None for parts in _products(layer))
        and all(keep_their_places([one.weight for one in parts]) for parts in _products(layer))
    )


def _attention_order(attention: Any) -> torch.Tensor | None:
    if attention.q_proj.weight.dtype != torch.float32:
        return None
    return order_in_float32(_heads_of(attention))


def _heads_of(attention: Any) -> Heads:
    weight, size = attention.q_proj.weight, attention.head_dim
    heads = len(weight) // size
    return Heads.of_size(heads, heads // attention.num_key_value_groups, size, weight.dtype)


def _products(layer: Any) -> list[list[Any]]:
    """Return the linear layers of a decoder layer, those with the same input together."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    return [qkv, [attention.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]]


def _order(layers: list[Any]) -> _Order | None:
    """Return the order in which rows have the bits of each layer; None if there is none."""
    if len({layer.bias is None for layer in layers}) > 1:
        return None
    if layers[0].weight.dtype == torch.float32:
        plans = [RowPlan.of_weight(one.weight.data, one.bias is not None) for one in layers]
        orders = [plan.order for plan in plans if isinstance(plan.order, SumOrder)]
        if len(orders) < len(plans):
            return None
        return 0, SumOrder.one_behind_the_other(orders).tensor
    order = common_order(layers)
    return None if order is None else (order, None)
