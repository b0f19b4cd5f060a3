"""vLLM's models whose decoder layers compute a step as one operator, with the same bits.

Steps of more than `MOST_ROWS` single tokens, or with prompts that do not fit into a sliding window,
go the model's own way, and so do those of ranks of tensor parallelism.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from vllm.fork.models.followed import Followed, Source
from vllm.fork.models.llama_decoders import (
    PRODUCTS,
    head_norms,
    layers_as_one,
    norms_of,
    products_of,
)
from vllm.fork.models.watched_modules import WatchedModules
from vllm.fork_kernels.layer_weights import Epsilons, LayerWeights, ProductWeights
from vllm.fork_kernels.torch_order.decoder_rows import (
    DecoderWeights,
    Orders,
    RowsInPages,
    decoder_rows,
)
from vllm.hf_layers.attention.attention import HFAttentionImpl
from vllm.hf_layers.attention.paged_attention import Heads, adds_in_order
from vllm.hf_layers.decoder.rows_at_once import Product, StepsRowsAtOnce
from vllm.hf_layers.decoder.rows_in_pages import rows_in_pages
from vllm.hf_layers.layers.activations import forward_silu_and_mul
from vllm.hf_layers.layers.linear import HFLinearMethod, common_order
from vllm.hf_layers.layers.norms import Scaling, forward_rms_norm
from vllm.hf_layers.layers.rotary import forward_rotary
from vllm.hf_layers.layers.split_linear import SplitLinearMethod
from vllm.hf_layers.products.prompts_together import PromptsTogether
from vllm.hf_layers.step_rows import Run, pieces_of
from vllm.model_executor.layers.activation import SiluAndMul

Places = tuple[list[RowsInPages], tuple[Run, ...]]
"""Where the tokens of a step are in the pages of each layer, and its runs."""


class RowsDecoder:
    """The layers of a loaded decoder (`LayersAsOne`).

    Args:
        decoder: as ``LlamaModel``.
        layers: its layers.
        orders: of their products.

    Attributes:
        watched: the modules that are not called.
        names: of the layers' attention.
        heads: of the attention.
    """

    def __init__(self, decoder: Any, layers: list[Any], orders: list[Orders]) -> None:
        self._layers = layers
        self._orders = orders
        self.watched = WatchedModules.of_decoder(decoder)
        self._attentions = [layer.self_attn.attn for layer in layers]
        self.names: list[str] = [one.layer_name for one in self._attentions]
        self._windows = [max(one.impl.sliding_window, 0) for one in self._attentions]
        self.heads = _heads_of(self._attentions[0], layers[0].input_layernorm.weight.dtype)
        sources = [source for layer in layers for source in _sources_of(layer)]
        self._weights = Followed(self._made, sources)
        width: int = layers[0].mlp.down_proj.weight.shape[1]
        self._at_once = StepsRowsAtOnce(self._products, width, self.heads.dtype)

    def places(self, metadata: list[Any], slots: list[Any], num_rows: int) -> Places | None:
        """As ``LayersAsOne.places``."""
        places: list[RowsInPages] = []
        place, last = None, (None, None, 0)
        for own in zip(metadata, slots, self._windows, strict=True):
            if any(map(operator.is_not, own, last)):  # most layers have the same
                place, last = rows_in_pages(*own, num_rows, self.heads), own
            if place is None:
                return None
            places.append(place)
        return places, pieces_of(metadata[0]).runs

    def compute(
        self, x: torch.Tensor, positions: torch.Tensor, places: Places
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``LayersAsOne.compute``."""
        rotary = self._layers[0].self_attn.rotary_emb
        rows, runs = places
        return decoder_rows(
            x,
            self._weights.current,
            positions,
            rotary._match_cos_sin_cache_dtype(x),
            [one.kv_cache for one in self._attentions],
            rows,
            is_neox=rotary.is_neox_style,
            scale=self._attentions[0].impl.scale,
            at_once=self._at_once(runs),
        )

    def _made(self) -> DecoderWeights:
        norms = norms_of(self._layers[0])
        epsilons = Epsilons(*(norm.variance_epsilon for norm in norms[:3]))
        return DecoderWeights([*map(_weights_of, self._layers)], self._orders, epsilons)

    def _products(self) -> list[Product]:
        return [(_ways_of(one), one.bias is not None) for one in products_of(self._layers[0])]


def layers_of(decoder: Any) -> RowsDecoder | None:
    """Return the layers of a loaded decoder; None if the operator does not compute them."""
    if (layers := layers_as_one(decoder, _is_computed, _shape_of)) is None:
        return None
    found = [orders for layer in layers if (orders := _orders_of(layer)) is not None]
    return RowsDecoder(decoder, layers, found) if len(found) == len(layers) else None


def _is_computed(layer: Any) -> bool:
    """Whether the operator computes a layer."""
    attention, mlp = layer.self_attn, layer.mlp
    products = products_of(layer)
    return not (
        any(type(one) is not kind for one, kind in zip(products, PRODUCTS, strict=True))
        or any(one.tp_size > 1 or one.skip_bias_add for one in products)
        or not all(map(_is_rounded_norm, norms_of(layer)))
        or not _calls(attention.rotary_emb, forward_rotary)
        or not (type(mlp.act_fn) is SiluAndMul and _calls(mlp.act_fn, forward_silu_and_mul))
        or not _attends_in_order(attention.attn, layer.input_layernorm.weight.dtype)
    )


def _shape_of(layer: Any) -> tuple[Any, ...]:
    """Return what is the same in all layers that the operator computes at once."""
    attention = layer.self_attn
    tensors = (source.get(name) for source, name in _sources_of(layer))
    return (
        *(None if one is None else (one.shape, one.stride(), one.dtype) for one in tensors),
        *(norm.variance_epsilon for norm in norms_of(layer)),
        attention.rotary_emb,
        attention.attn.impl.scale,
        attention.attn.num_kv_heads,
    )


def _sources_of(layer: Any) -> list[Source]:
    """Return where the tensors of `LayerWeights` are."""
    return [
        *((norm._parameters, "weight") for norm in norms_of(layer)),
        *((one._parameters, name) for one in products_of(layer) for name in ("weight", "bias")),
    ]


def _weights_of(layer: Any) -> LayerWeights:
    qkv, output, gate_up, down = (
        ProductWeights(one.weight, bias=one.bias) for one in products_of(layer)
    )
    query_norm, key_norm = [one.weight for one in head_norms(layer)] or [None, None]
    first, second = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    return LayerWeights(first, qkv, query_norm, key_norm, output, second, gate_up, down)


def _calls(layer: Any, function: Any) -> bool:
    """Whether `use_hf_layers` has given a layer a function."""
    return getattr(getattr(layer, "_forward_method", None), "func", None) is function


def _is_rounded_norm(norm: Any) -> bool:
    method: Any = getattr(norm, "_forward_method", None)
    return (
        _calls(norm, forward_rms_norm)
        and method.keywords.get("scaling") is Scaling.ROUNDED
        and norm.has_weight
        and norm.weight.dtype in (torch.bfloat16, torch.float16)
    )


def _attends_in_order(attention: Any, dtype: torch.dtype) -> bool:
    impl = attention.impl
    return (
        type(impl) is HFAttentionImpl
        and impl.takes_single_tokens
        and attention.query_quant is None
        and attention.kv_sharing_target_layer_name is None
        and adds_in_order(_heads_of(attention, dtype))
    )


def _heads_of(attention: Any, dtype: torch.dtype) -> Heads:
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    return Heads.of_size(heads, kv_heads, attention.head_size, dtype)


def _orders_of(layer: Any) -> Orders | None:
    """Return in which orders rows are multiplied by the fork's own products, if they all are."""
    qkv, output, gate_up, down = map(_order_of, products_of(layer))
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return qkv, output, gate_up, down


def _ways_of(layer: Any) -> PromptsTogether:
    """Return how a linear layer that has an order multiplies the rows of a step."""
    method = layer.quant_method
    found: Any = layer.cpu_linear.ways if type(method) is HFLinearMethod else method.ways_of_prompts
    assert isinstance(found, PromptsTogether)
    return found


def _order_of(layer: Any) -> int | None:
    """Return in which order rows are multiplied by the fork's own product, if they are."""
    method = layer.quant_method
    if isinstance(method, SplitLinearMethod):
        return method.order_of_rows
    return common_order([layer]) if type(method) is HFLinearMethod else None
