"""Models of vLLM whose decoder layers compute a step as one operator, with portable bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from vllm.deterministic.activations import PortableGatedActivation
from vllm.deterministic.attention import PortableAttentionImpl, PortableMetadata
from vllm.deterministic.linear import PortableLinearMethod
from vllm.deterministic.norms import forward_rms_norm
from vllm.deterministic.positions.rotary import PortableRotation
from vllm.fork.models.followed import Followed, Source
from vllm.fork.models.llama_decoders import (
    PRODUCTS,
    head_norms,
    layers_as_one,
    norms_of,
    products_of,
)
from vllm.fork.models.watched_modules import WatchedModules
from vllm.fork_kernels.layer_weights import Epsilons, LayerWeights, ProductWeights, in_one_list
from vllm.fork_kernels.portable.decoder import DecoderSizes, Places, portable_decoder_layers
from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.prepared_digits import has_digits
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm


class _Shape(NamedTuple):
    """What all layers must have in common."""

    sizes: DecoderSizes
    rotation: PortableRotation
    scale: float
    window: int


class PortableDecoder:
    """The layers of a loaded decoder (`LayersAsOne`).

    Args:
        decoder: as ``LlamaModel``.
        layers: its layers.

    Attributes:
        watched: the modules that are not called.
        names: of the layers' attention.
    """

    def __init__(self, decoder: Any, layers: list[Any]) -> None:
        self._layers = layers
        self._shape = _shape_of(layers[0])
        self.watched = WatchedModules.of_decoder(decoder)
        self._attentions = [one.self_attn.attn for one in layers]
        self.names: list[str] = [one.layer_name for one in self._attentions]
        sources = [source for layer in layers for source in _sources_of(layer)]
        self._weights = Followed(self._made, sources)

    def places(self, metadata: list[Any], slots: list[Any], num_rows: int) -> Places | None:
        """As ``LayersAsOne.places``: None unless all layers attend to the same."""
        first, own_slots = metadata[0], slots[0]
        if (
            type(first) is not PortableMetadata
            or own_slots is None
            or not first.num_tokens == len(own_slots) == num_rows > 0
            or any(one is not first for one in metadata)
            or any(one is not own_slots for one in slots)
        ):
            return None
        return Places(own_slots, first.block_table, first.query_start_loc, first.seq_lens)

    def compute(
        self, x: torch.Tensor, positions: torch.Tensor, places: Places
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``LayersAsOne.compute``."""
        shape, total = self._shape, x.contiguous()
        added = portable_decoder_layers(
            total,
            self._weights.current,
            shape.sizes,
            positions.contiguous(),
            shape.rotation.table,
            [one.kv_cache for one in self._attentions],
            places,
            is_interleaved=shape.rotation.is_interleaved,
            scale=shape.scale,
            window=shape.window,
        )
        return added, total

    def _made(self) -> list[torch.Tensor]:
        return in_one_list([*map(_weights_of, self._layers)])


def layers_of(decoder: Any) -> PortableDecoder | None:
    """Return the layers of a loaded decoder; None if the operator does not compute them."""
    layers = layers_as_one(decoder, _is_computed, _shape_of)
    return None if layers is None else PortableDecoder(decoder, layers)


def _sources_of(layer: Any) -> list[Source]:
    """Return where the tensors of `LayerWeights` are."""
    products = products_of(layer)
    return [
        *((norm._parameters, "weight") for norm in norms_of(layer)),
        *((one._parameters, "bias") for one in products),
        *((vars(one.quant_method), "packed") for one in products),
    ]


def _weights_of(layer: Any) -> LayerWeights:
    qkv, output, gate_up, down = (
        ProductWeights(one.quant_method.packed.packed, one.quant_method.packed.exponents, one.bias)
        for one in products_of(layer)
    )
    query_norm, key_norm = [one.weight for one in head_norms(layer)] or [None, None]
    first, second = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    return LayerWeights(first, qkv, query_norm, key_norm, output, second, gate_up, down)


def _is_computed(layer: Any) -> bool:
    """Whether the operator computes a layer, if all others are alike."""
    attention, mlp = layer.self_attn, layer.mlp
    return (
        all(map(_is_portable_norm, norms_of(layer)))
        and type(attention.rotary_emb) is PortableRotation
        and attention.rotary_emb.head_size == attention.attn.head_size
        and _attends(attention.attn)
        and type(mlp.act_fn) is PortableGatedActivation
        and (mlp.act_fn.function, mlp.act_fn.is_gate_first) == (Function.SILU, True)
        and all(map(_is_portable_product, products_of(layer), PRODUCTS))
        and _fit(layer)
    )


def _is_portable_norm(norm: Any) -> bool:
    method: Any = getattr(norm, "_forward_method", None)
    return (
        type(norm) is RMSNorm
        and getattr(method, "func", None) is forward_rms_norm
        and bool(norm.has_weight)
    )


def _is_portable_product(product: Any, kind: type[nn.Module]) -> bool:
    method = product.quant_method
    return (
        product.tp_size == 1
        and not product.skip_bias_add
        and type(product) is kind
        and type(method) is PortableLinearMethod
        and method.packed is not None
        and not has_digits(method.packed.packed.device)  # kernels there are fused in another way
    )


def _attends(attention: Any) -> bool:
    impl = attention.impl
    return (
        attention.query_quant is None
        and type(attention) is Attention
        and type(impl) is PortableAttentionImpl
        and impl.is_plain
        and impl.kv_sharing_target_layer_name is None
    )


def _fit(layer: Any) -> bool:
    """Whether each product has as many rows and columns as the operator takes it to have."""
    attention = layer.self_attn.attn
    qkv, output, gate_up, down = (one.quant_method.packed for one in products_of(layer))
    queries, keys = (n * attention.head_size for n in (attention.num_heads, attention.num_kv_heads))
    return (
        qkv.out_features == queries + 2 * keys
        and output.in_features == queries
        and gate_up.out_features == 2 * down.in_features
        and qkv.in_features == gate_up.in_features == output.out_features == down.out_features
    )


def _shape_of(layer: Any) -> _Shape:
    attention = layer.self_attn
    packed = [one.quant_method.packed for one in products_of(layer)]
    epsilons = {norm.variance_epsilon for norm in head_norms(layer)}
    qkv, output, gate_up, down = (one.segments for one in packed)
    sizes = DecoderSizes(
        Epsilons(
            layer.input_layernorm.variance_epsilon,
            layer.post_attention_layernorm.variance_epsilon,
            epsilons.pop() if epsilons else 0.0,
        ),
        (qkv, output, gate_up, down),
        attention.attn.num_heads,
        attention.attn.head_size,
        packed[3].in_features,
    )
    impl = attention.attn.impl
    return _Shape(sizes, attention.rotary_emb, impl.scale, impl.window)
