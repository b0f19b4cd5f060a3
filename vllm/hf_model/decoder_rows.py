"""The decoder layers of Transformers' models as one operator, for a group of tokens or prompts.

It is the operator of `vllm.hf_layers.decoder.decoder_rows`, with the bits that the layers' own
modules give each request alone; whether it has them is tried with the whole model when the engine
starts (`self_check`). It takes queries, keys and values from one weight, gate and up from another:
so the layers' own parameters become views of these.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from vllm.fork_kernels import rms_norm_rounded
from vllm.fork_kernels.torch_order.decoder_rows import (
    DecoderWeights,
    Epsilons,
    LayerWeights,
    RowOrder,
    RowsAtOnce,
    RowsInPages,
    decoder_rows,
)
from vllm.fork_kernels.torch_order.ordered_products import SumOrder
from vllm.hf_layers.attention.paged_attention import Heads, adds_in_order, order_in_float32
from vllm.hf_layers.decoder.decoder_rows import STEPS_KEPT
from vllm.hf_layers.layers.activations import rows_activated
from vllm.hf_layers.layers.linear import common_order, side_by_side
from vllm.hf_layers.products.prompts_together import PromptsTogether
from vllm.hf_layers.products.single_row_products import RowPlan, layout_of, placed
from vllm.hf_layers.step_rows import Run
from vllm.hf_model.rotations import Rotation

_KINDS = ("Llama", "Mistral", "Qwen2", "Qwen3")
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def is_kind(module: Any, part: str) -> bool:
    """Whether a module is a part, such as ``Model``, of one of `_KINDS` of Transformers' models."""
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    return name in {
        f"transformers.models.{kind.lower()}.modeling_{kind.lower()}.{kind}{part}"
        for kind in _KINDS
    }


class SideBySide:
    """Weights of linear layers with the same input, one below the other.

    Args:
        layers: whose parameters become views.
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
        if places_of(self.own) != self._places:
            self._join()
        return self._weight, self._bias


def places_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return where tensors lie in memory."""
    return [*map(torch.Tensor.data_ptr, tensors)]


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
        layer: for which `_can_compute` holds.

    Attributes:
        sources: where the layer's own parameters are: a dictionary, and the name in it.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        # Before weights are moved: an order may depend on where they are.
        self._orders: Any = tuple(map(_order, _products(layer)))
        self.attention_order = _attention_order(attention)
        self._qkv = SideBySide([attention.q_proj, attention.k_proj, attention.v_proj])
        self._gate_up = SideBySide([mlp.gate_proj, mlp.up_proj])
        none: dict[str, torch.Tensor | None] = {}
        of_heads = [norm._parameters for norm in _head_norms(attention)] or [none, none]
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self._norms = [*(norm._parameters for norm in norms), *of_heads]
        self._products = [attention.o_proj._parameters, mlp.down_proj._parameters]
        joined = [attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj]
        self.sources = [
            *((own, "weight") for own in self._norms),
            *((own, name) for own in self._products for name in ("weight", "bias")),
            *((one._parameters, name) for one in joined for name in ("weight", "bias")),
        ]

    @property
    def joined(self) -> list[torch.Tensor]:
        """The parameters that are views of what `parameters` has."""
        return [*self._qkv.own, *self._gate_up.own]

    @property
    def parameters(self) -> list[torch.Tensor | None]:
        """The tensors of `LayerWeights`, in their order there."""
        input_norm, post_norm, *of_heads = (one.get("weight") for one in self._norms)
        (output, output_bias), (down, down_bias) = (
            (one["weight"], one["bias"]) for one in self._products
        )
        return [
            input_norm,
            *self._qkv.parameters,
            *of_heads,
            output,
            output_bias,
            post_norm,
            *self._gate_up.parameters,
            down,
            down_bias,
        ]

    def weights_of(self, parameters: list[Any]) -> LayerWeights:
        """Return `parameters` with the layer's orders."""
        return LayerWeights(self._orders, *parameters)


class DecoderRows:
    """Computes what the layers of a model do, and the norm behind them.

    Args:
        decoder: for which `can_compute` holds.
    """

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        layers = list(decoder.layers)
        self._layers = [_Layer(layer) for layer in layers]
        sources = [source for layer in self._layers for source in layer.sources]
        self._sources = [*zip(*sources, strict=True)]  # dictionaries, and names in them
        self._found: list[torch.Tensor | None] = []
        self._joined: list[torch.Tensor] = []
        self._places: list[int] = []
        self._made = self._made_now()
        self.heads = _heads_of(layers[0].self_attn)
        self._width: int = layers[0].mlp.down_proj.in_features
        self._ways = _ways_of(layers[0])
        self._at_once = functools.lru_cache(STEPS_KEPT)(self._found_at_once)

    @property
    def takes_prompts(self) -> bool:
        """Whether it computes prompts: in 16 bits."""
        return bool(self._ways)

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
            self._weights,
            rotation.rows,
            rotation.table,
            pages,
            places,
            is_neox=True,
            scale=self._decoder.layers[0].self_attn.scaling,
            at_once=self._at_once(len(x), prompts, torch.get_num_threads()),
        )
        if kept is not None:
            added, total = added[kept], total[kept]
        norm = self._decoder.norm
        return rms_norm_rounded(added, norm.weight, norm.variance_epsilon, total)[0]

    def _found_at_once(
        self, num_rows: int, prompts: tuple[Run, ...], num_threads: int
    ) -> RowsAtOnce:
        """Return which rows of the group are computed at once, with so many threads."""
        if not prompts:
            return RowsAtOnce(activated=rows_activated(((True, 0, num_rows),), self._width))
        qkv, output, gate_up, down = (
            ways.ways(prompts, has_bias, self.heads.dtype) for ways, has_bias in self._ways
        )
        return RowsAtOnce((qkv, output, gate_up, down), rows_activated(prompts, self._width))

    @property
    def _weights(self) -> DecoderWeights:
        """What the layers compute with now."""
        found = map(dict.get, *self._sources)
        if any(map(operator.is_not, found, self._found)) or places_of(self._joined) != self._places:
            self._made = self._made_now()
        return self._made

    def _made_now(self) -> DecoderWeights:
        made = self._weights_of([layer.parameters for layer in self._layers])
        self._found = [*map(dict.get, *self._sources)]
        self._joined = [one for layer in self._layers for one in layer.joined]
        self._places = places_of(self._joined)
        return made

    def _weights_of(self, parameters: list[list[torch.Tensor | None]]) -> DecoderWeights:
        first = self._decoder.layers[0]
        norms = (first.input_layernorm, first.post_attention_layernorm)
        return DecoderWeights(
            [layer.weights_of(own) for layer, own in zip(self._layers, parameters, strict=True)],
            Epsilons(
                *(norm.variance_epsilon for norm in (*norms, *_head_norms(first.self_attn)[:1]))
            ),
            self._layers[0].attention_order,
        )


def _ways_of(layer: Any) -> list[tuple[PromptsTogether, bool]]:
    """Return how each of a layer's products multiplies prompts, and whether it has a bias; nothing
    in float32.
    """
    products = [
        (side_by_side(parts, [one.out_features for one in parts]), parts[0].bias is not None)
        for parts in _products(layer)
    ]
    return [(product.ways, has_bias) for product, has_bias in products if product is not None]


def _head_norms(attention: Any) -> list[Any]:
    """Return the norms of queries and keys, if there are any."""
    return [attention.q_norm, attention.k_norm] if hasattr(attention, "q_norm") else []


def can_compute(decoder: Any, attention_name: str) -> bool:
    """Whether the operator is what a model's layers compute, with the kernels that this CPU has.

    Args:
        decoder: of a Transformers model.
        attention_name: of the model's implementation.
    """
    if not is_kind(decoder, "Model") or attention_name != "sdpa" or not len(decoder.layers):
        return False
    return (
        all(map(computes_as_its_class, decoder.modules()))
        and all(map(_can_compute, decoder.layers))
        and len({*map(_shape_of, decoder.layers)}) == 1
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
    norms = (layer.input_layernorm, layer.post_attention_layernorm, *_head_norms(attention))
    return (
        *((one.weight.shape, one.bias is None) for parts in _products(layer) for one in parts),
        *(norm.variance_epsilon for norm in norms),
        attention.q_proj.weight.dtype,
        attention.scaling,
    )


def _can_compute(layer: Any) -> bool:
    if not is_kind(layer, "DecoderLayer"):
        return False
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
