"""Which decoder layers one operator computes, and what they compute with."""

from __future__ import annotations

import operator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from vllm.deterministic.activations import PortableGatedActivation
from vllm.deterministic.attention import PortableAttentionImpl
from vllm.deterministic.linear import PortableLinearMethod
from vllm.deterministic.norms import forward_rms_norm
from vllm.deterministic.positions.rotary import PortableRotation
from vllm.fork.models.llama_decoders import (
    PRODUCTS,
    has_stock_layers,
    head_norms,
    norms_of,
    products_of,
)
from vllm.fork.models.watched_modules import WatchedModules
from vllm.fork_kernels.portable.decoder import DecoderSizes, DecoderWeights, ProductWeights
from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.prepared_digits import has_digits
from vllm.fork_kernels.portable.product import PackedWeight
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm


class _Shape(NamedTuple):
    """What all layers must have in common."""

    sizes: DecoderSizes
    rotation: PortableRotation
    scale: float
    window: int


class DecoderLayers:
    """The layers of a loaded model, which are computed at once.

    Args:
        model: one of those that :func:`computable_layers` knows.
        shape: of its layers.

    Attributes:
        shape: likewise.
        watched: the modules that are not called any more.
        names: of the layers' attention.
    """

    def __init__(self, model: Any, shape: _Shape) -> None:
        layers = list(model.layers)
        self.shape = shape
        self.watched = WatchedModules.of_decoder(model)
        self.names: list[str] = [one.self_attn.attn.layer_name for one in layers]
        self._attention = [one.self_attn.attn for one in layers]
        self._norms = [
            [norm._parameters for norm in norms]
            for norms in (
                [one.input_layernorm for one in layers],
                [one.post_attention_layernorm for one in layers],
                *zip(*(head_norms(one) for one in layers), strict=True),
            )
        ]
        products = list(zip(*map(products_of, layers), strict=True))
        self._biases = [[one._parameters for one in some] for some in products]
        self._methods = [[one.quant_method for one in some] for some in products]
        self._found: list[Any] = []
        self._weights: DecoderWeights | None = None

    @property
    def weights(self) -> DecoderWeights | None:
        """What the layers compute with now: a running engine may be given other parameters.

        None if it is not of one kind in all layers.
        """
        norms = [[one["weight"] for one in some] for some in self._norms]
        biases = [[one["bias"] for one in some] for some in self._biases]
        packed = [[one.packed for one in some] for some in self._methods]
        found = list(chain(*norms, *biases, *packed))
        if not self._found or any(map(operator.is_not, found, self._found)):
            self._found, self._weights = found, _weights_of(norms, biases, packed)
        if self._weights is None:
            return None
        return self._weights._replace(caches=[one.kv_cache for one in self._attention])


def computable_layers(model: Any) -> DecoderLayers | None:
    """Return the layers of a loaded model; None if they are not what the operator computes."""
    if (
        (model.start_layer, model.end_layer) != (0, len(model.layers))
        or not has_stock_layers(model)
        or not all(map(_is_computed, model.layers))
    ):
        return None
    shapes = list(map(_shape_of, model.layers))
    layers = DecoderLayers(model, shapes[0])
    if layers.watched.have_own_forward or any(one != shapes[0] for one in shapes):
        return None
    return layers


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
        (qkv, output, gate_up, down),
        attention.attn.num_heads,
        attention.attn.head_size,
        packed[3].in_features,
        layer.input_layernorm.variance_epsilon,
        layer.post_attention_layernorm.variance_epsilon,
        epsilons.pop() if epsilons else 0.0,
    )
    impl = attention.attn.impl
    return _Shape(sizes, attention.rotary_emb, impl.scale, impl.window)


def _weights_of(
    norms: list[list[torch.Tensor]],
    biases: list[list[torch.Tensor | None]],
    packed: list[list[PackedWeight]],
) -> DecoderWeights | None:
    """Return what layers compute with, without caches; None if only some have a bias."""
    products = list(map(_product_weights, packed, biases))
    input_norms, post_norms, *head_norms = norms
    query_norms, key_norms = head_norms or ([], [])
    qkv, output, gate_up, down = products
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return DecoderWeights(
        input_norms, qkv, query_norms, key_norms, output, post_norms, gate_up, down, caches=[]
    )


def _product_weights(
    packed: list[PackedWeight], biases: list[torch.Tensor | None]
) -> ProductWeights | None:
    exponents = [one.exponents for one in packed if one.exponents is not None]
    found = [bias for bias in biases if bias is not None]
    if len(exponents) != len(packed) or len(found) not in (0, len(packed)):
        return None
    return ProductWeights([one.packed for one in packed], exponents, found)
