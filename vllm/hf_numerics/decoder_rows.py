"""Decoder layers that compute a step of single tokens as one operator, with the same bits.

What a layer calls for such a step are a few operators of this project, and in a small model most of
the time goes into calling them. Any other step goes the layer's own way, and so does every step of
a layer that is not exactly what the operator computes: with adapters, with hooks, with modules that
were replaced, on ranks of tensor parallelism.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm.fork_ops.decoder_layer import LayerWeights, RowOrder, RowsInPages, decoder_layer_rows
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.hf_numerics.activations import forward_silu_and_mul
from vllm.hf_numerics.attention import HFAttentionImpl
from vllm.hf_numerics.layer_parts import MOST_ROWS, LayerParts, counts_without_remainder
from vllm.hf_numerics.linear import HFLinearMethod, common_order
from vllm.hf_numerics.norms import Scaling, forward_rms_norm
from vllm.hf_numerics.paged_attention import adds_in_order
from vllm.hf_numerics.rotary import forward_rotary
from vllm.hf_numerics.single_tokens import single_tokens_of
from vllm.hf_numerics.split_linear import SplitLinearMethod
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_MODELS = "vllm.model_executor.models."
_LAYERS = {
    "llama.LlamaDecoderLayer": ("llama.LlamaAttention", "llama.LlamaMLP"),
    "mistral.MistralDecoderLayer": ("mistral.MistralAttention", "llama.LlamaMLP"),
    "qwen2.Qwen2DecoderLayer": ("qwen2.Qwen2Attention", "qwen2.Qwen2MLP"),
    "qwen3.Qwen3DecoderLayer": ("qwen3.Qwen3Attention", "qwen2.Qwen2MLP"),
}
"""Layers of vLLM's models that can compute as ``LlamaDecoderLayer.forward`` does, in Qwen3's with
norms of heads; and what attends and multiplies in them."""

_PLACES = "_hf_places_of_rows"

Output = tuple[torch.Tensor, torch.Tensor]


def use_decoder_rows(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Let the decoder layers of a model, which is not loaded yet, take steps of single tokens.

    Args:
        model: of vLLM, with Hugging Face's operations.
        vllm_config: of the engine.
    """
    if vllm_config.kv_transfer_config is not None:
        return  # what is sent elsewhere is sent by each layer's attention
    for layer in model.modules():
        if _name_of(layer) in _LAYERS:
            vars(layer)["forward"] = DecoderRows(layer)


class _Plan:
    """How a loaded layer is computed.

    Args:
        layer: one of `_LAYERS`.
        orders: of the products with qkv, o, gate and up, and down (`row_products`).

    Attributes:
        parts: of the layer.
        counts: of rows for which it is computed.
    """

    def __init__(self, layer: Any, orders: tuple[int, int, int, int]) -> None:
        self._layer = layer
        self._orders = orders
        self.parts = LayerParts(layer)
        attention, mlp = layer.self_attn, layer.mlp
        norms = (layer.input_layernorm, layer.post_attention_layernorm, *_head_norms(attention))
        products = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
        self._norms = [norm._parameters for norm in norms]
        self._products = [product._parameters for product in products]
        self._parameters: list[torch.Tensor | None] = []
        self._weights: LayerWeights | None = None
        self.counts = counts_without_remainder(mlp.down_proj.weight.shape[1])

    @property
    def weights(self) -> LayerWeights:
        """What the layer computes with now: a running engine may be given other parameters."""
        found = [one["weight"] for one in self._norms]
        found += [one[name] for one in self._products for name in ("weight", "bias")]
        if self._weights is None or any(map(operator.is_not, found, self._parameters)):
            self._parameters, self._weights = found, self._weights_of(found)
        return self._weights

    def _weights_of(self, parameters: list[Any]) -> LayerWeights:
        input_norm, post_norm, *rest = parameters
        head_norms = _head_norms(self._layer.self_attn)
        query_norm, key_norm = rest[: len(head_norms)] or (None, None)
        qkv, qkv_bias, output, output_bias, *others = rest[len(head_norms) :]
        gate_up, gate_up_bias, down, down_bias = others
        return LayerWeights(
            input_norm,
            qkv,
            qkv_bias,
            RowOrder(self._orders[0]),
            query_norm,
            key_norm,
            head_norms[0].variance_epsilon if head_norms else 0.0,
            output,
            output_bias,
            RowOrder(self._orders[1]),
            post_norm,
            gate_up,
            gate_up_bias,
            RowOrder(self._orders[2]),
            down,
            down_bias,
            RowOrder(self._orders[3]),
            self._layer.input_layernorm.variance_epsilon,
            self._layer.post_attention_layernorm.variance_epsilon,
            None,
        )


class DecoderRows:
    """Stands in for the ``forward`` of a decoder layer.

    Args:
        layer: one of `_LAYERS`.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._forward = layer.forward
        self._name: str = layer.self_attn.attn.layer_name
        self._window: int = max(layer.self_attn.attn.impl.sliding_window, 0)
        self._plan: _Plan | None = None
        self._is_planned = False

    def __call__(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        **others: Any,
    ) -> Output:
        """As ``LlamaDecoderLayer.forward``."""
        num_rows = len(hidden_states)
        if num_rows <= MOST_ROWS and positions.dim() == 1 and not others:
            places = self._places(num_rows)
            if places is not None and (plan := self._current_plan()) and num_rows in plan.counts:
                return self._compute(positions, hidden_states, residual, plan, places)
        output: Output = self._forward(positions, hidden_states, residual, **others)
        return output

    def _places(self, num_rows: int) -> RowsInPages | None:
        """Return where the tokens of this step are; None unless each is computed by itself."""
        if not is_forward_context_available():
            return None
        context = get_forward_context()
        metadata, slots = context.attn_metadata, context.slot_mapping
        if not (isinstance(metadata, dict) and isinstance(slots, dict) and self._name in metadata):
            return None
        return _places_of(metadata[self._name], slots.get(self._name), num_rows, self._window)

    def _current_plan(self) -> _Plan | None:
        """Return the plan; None if the layer is not, or not now, what the operator computes."""
        if not self._is_planned:  # weights are loaded, and adapters are in their places
            self._plan, self._is_planned = _plan_of(self._layer), True
        return self._plan if self._plan is not None and self._plan.parts.are_unchanged else None

    def _compute(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        plan: _Plan,
        places: RowsInPages,
    ) -> Output:
        attention = self._layer.self_attn
        rotary, attn = attention.rotary_emb, attention.attn
        # vLLM's parameters have Python called for each operator that they are given to.
        with torch._C.DisableTorchFunctionSubclass():
            return decoder_layer_rows(
                hidden_states,
                residual,
                plan.weights,
                positions,
                rotary._match_cos_sin_cache_dtype(hidden_states),
                attn.kv_cache,
                places,
                is_neox=rotary.is_neox_style,
                scale=attn.impl.scale,
            )


def _places_of(
    metadata: Any, slots: torch.Tensor | None, num_rows: int, window: int
) -> RowsInPages | None:
    """Return where rows are, if they are all of a step and each is a token by itself.

    Args:
        metadata: of attention, which keeps the answer for the step's other layers.
        slots: int64 [num_rows or more], where keys and values are written.
        num_rows: of the layer's input.
        window: how many tokens each sees at most; 0 if it sees all.
    """
    kept: dict[int, tuple[Any, RowsInPages | None]] = vars(metadata).setdefault(_PLACES, {})
    if window not in kept or kept[window][0] is not slots:
        found = None
        single = None if slots is None else single_tokens_of(metadata)
        if slots is not None and single is not None and _are_all_rows(single.rows, num_rows):
            starts = single.starts(window)
            found = RowsInPages(slots[:num_rows], single.blocks, starts, single.stops)
        kept[window] = slots, found
    return kept[window][1]


def _are_all_rows(rows: slice | torch.Tensor, num_rows: int) -> bool:
    return isinstance(rows, slice) and rows == slice(0, num_rows)


def _name_of(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}".removeprefix(_MODELS)


def _plan_of(layer: Any) -> _Plan | None:
    """Return how a loaded layer is computed; None if it is not what the operator computes."""
    attention, mlp = layer.self_attn, layer.mlp
    products = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    kinds = (QKVParallelLinear, RowParallelLinear, MergedColumnParallelLinear, RowParallelLinear)
    norms = (layer.input_layernorm, layer.post_attention_layernorm, *_head_norms(attention))
    if (
        (_name_of(attention), _name_of(mlp)) != _LAYERS[_name_of(layer)]
        or any(getattr(attention, name, False) for name in ("qk_norm", "do_llama_4_scaling"))
        or getattr(layer, "ada_rms_norm_t_cond", None) is not None
        or any(
            "forward" in vars(one) for part in (layer, attention, mlp) for one in part.children()
        )
        or any(type(one) is not kind for one, kind in zip(products, kinds, strict=True))
        or any(one.tp_size > 1 or one.skip_bias_add for one in products)
        or not all(map(_is_rounded_norm, norms))
        or not _calls(attention.rotary_emb, forward_rotary)
        or not (type(mlp.act_fn) is SiluAndMul and _calls(mlp.act_fn, forward_silu_and_mul))
        or not _attends_in_order(attention.attn, layer.input_layernorm.weight.dtype)
    ):
        return None
    orders = [_order_of(one) for one in products]
    if any(order is None for order in orders):
        return None
    qkv, output, gate_up, down = (order for order in orders if order is not None)
    return _Plan(layer, (qkv, output, gate_up, down))


def _head_norms(attention: Any) -> list[Any]:
    """Return the norms of queries and keys, if there are any."""
    norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return [norm for norm in norms if norm is not None]


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
        and adds_in_order(attention.num_heads, attention.num_kv_heads, attention.head_size, dtype)
    )


def _order_of(layer: Any) -> int | None:
    """Return in which order rows are multiplied by the fork's own product, if they are."""
    method = layer.quant_method
    if isinstance(method, SplitLinearMethod):
        return method.order_of_rows
    return common_order([layer]) if type(method) is HFLinearMethod else None
