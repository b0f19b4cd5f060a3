"""Models whose decoder layers compute a step as one operator, with the same bits.

What layers call for a step are operators of this project and a few of PyTorch's, and in a small
model most of the time goes into calling them. Steps of more than `MOST_ROWS` single tokens, or with
prompts that do not fit into a sliding window, go the model's own way, and so does every step of a
model whose layers are not exactly what the operator computes: with adapters, with hooks, with
modules that were replaced, on ranks of tensor or pipeline parallelism.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm.fork.models.llama_decoders import (
    PRODUCTS,
    has_stock_layers,
    head_norms,
    is_decoder,
    norms_of,
    products_of,
)
from vllm.fork.models.watched_modules import WatchedModules
from vllm.fork_kernels.torch_order.decoder_rows import (
    DecoderWeights,
    Epsilons,
    LayerWeights,
    RowOrder,
    RowsAtOnce,
    RowsInPages,
    decoder_rows,
)
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.hf_layers.attention.attention import HFAttentionImpl
from vllm.hf_layers.attention.paged_attention import Heads, adds_in_order
from vllm.hf_layers.decoder.rows_in_pages import rows_in_pages
from vllm.hf_layers.layers.activations import forward_silu_and_mul, rows_activated
from vllm.hf_layers.layers.linear import HFLinearMethod, common_order
from vllm.hf_layers.layers.norms import Scaling, forward_rms_norm
from vllm.hf_layers.layers.rotary import forward_rotary
from vllm.hf_layers.layers.split_linear import SplitLinearMethod
from vllm.hf_layers.products.prompts_together import PromptsTogether
from vllm.hf_layers.step_rows import Run, pieces_of
from vllm.model_executor.layers.activation import SiluAndMul

if TYPE_CHECKING:
    from vllm.config import VllmConfig

STEPS_KEPT = 256
"""Of so many kinds of steps it is kept how their rows are computed."""

_Orders = tuple[RowOrder, RowOrder, RowOrder, RowOrder]


def use_decoder_rows(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Let the decoders of a model, which is not loaded yet, compute steps as one operator.

    Args:
        model: of vLLM, with Hugging Face's operations.
        vllm_config: of the engine.
    """
    if vllm_config.kv_transfer_config is not None:
        return  # what is sent elsewhere is sent by each layer's attention
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return  # what goes from rank to rank is the model's own business
    decoder: Any
    for decoder in model.modules():
        if is_decoder(decoder) and has_stock_layers(decoder):
            vars(decoder)["forward"] = DecoderRows(decoder)


class _Plan:
    """How a loaded decoder is computed.

    Args:
        decoder: with layers that the operator computes.
        orders: of each layer's products with qkv, o, gate and up, and down.

    Attributes:
        watched: the modules that are not called.
        rotary: the rotary embedding of all layers.
        heads: of the attention.
        at_once: returns which rows of a step, of these runs, are computed at once, with so many
            threads.
    """

    def __init__(self, decoder: Any, orders: list[_Orders]) -> None:
        layers = self._layers = list(decoder.layers)
        self._orders = orders
        self.watched = WatchedModules.of_decoder(decoder)
        self.rotary = layers[0].self_attn.rotary_emb
        self._attentions = [layer.self_attn.attn for layer in layers]
        sources = [source for layer in layers for source in _parameters_of(layer)]
        self._sources = [*zip(*sources, strict=True)]  # dictionaries, and names in them
        self._parameters: list[torch.Tensor | None] = []
        self._weights: DecoderWeights | None = None
        self.heads = _heads_of(layers[0].self_attn.attn, layers[0].input_layernorm.weight.dtype)
        self.at_once = functools.lru_cache(STEPS_KEPT)(self._found_at_once)

    def _found_at_once(self, runs: tuple[Run, ...], num_threads: int) -> RowsAtOnce:
        first, dtype = self._layers[0], self.heads.dtype
        activated = rows_activated(runs, first.mlp.down_proj.weight.shape[1])
        if all(is_single for is_single, _, _ in runs):
            return RowsAtOnce(activated=activated)
        qkv, output, gate_up, down = (
            _ways_of(one).ways(runs, one.bias is not None, dtype) for one in products_of(first)
        )
        return RowsAtOnce((qkv, output, gate_up, down), activated)

    @property
    def scale(self) -> float:
        """Of the scores."""
        scale: float = self._attentions[0].impl.scale
        return scale

    @property
    def pages(self) -> list[torch.Tensor]:
        """The part of the KV cache of each layer."""
        return [one.kv_cache for one in self._attentions]

    @property
    def weights(self) -> DecoderWeights:
        """What the layers compute with now: a running engine may be given other parameters."""
        found = [*map(dict.get, *self._sources)]
        if self._weights is None or any(map(operator.is_not, found, self._parameters)):
            self._parameters, self._weights = found, self._made(found)
        return self._weights

    def _made(self, parameters: list[Any]) -> DecoderWeights:
        each = len(parameters) // len(self._layers)
        norms = norms_of(self._layers[0])
        return DecoderWeights(
            [
                LayerWeights(orders, *parameters[i * each : (i + 1) * each])
                for i, orders in enumerate(self._orders)
            ],
            Epsilons(*(norm.variance_epsilon for norm in norms[:3])),
        )


class DecoderRows:
    """Stands in for the ``forward`` of a model without its head.

    Args:
        decoder: for which `is_decoder` and `has_stock_layers` hold.
    """

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._forward = decoder.forward
        attentions = [layer.self_attn.attn for layer in decoder.layers]
        self._names: list[str] = [one.layer_name for one in attentions]
        self._windows = [max(one.impl.sliding_window, 0) for one in attentions]
        self._plan: _Plan | None = None
        self._is_planned = False

    def __call__(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        """As ``LlamaModel.forward``."""
        decoder = self._decoder
        if (
            positions.dim() == 1
            and intermediate_tensors is None
            and not others
            and not decoder.aux_hidden_state_layers
            and (plan := self._current_plan()) is not None
            and (step := self._step(len(positions), plan)) is not None
        ):
            x = decoder.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
            return decoder.norm(*self._compute(positions, x, plan, *step))[0]
        return self._forward(input_ids, positions, intermediate_tensors, inputs_embeds, **others)

    def _step(self, num_rows: int, plan: _Plan) -> tuple[list[RowsInPages], RowsAtOnce] | None:
        """Return where the tokens of this step are in the pages of each layer, and which are
        computed at once; None if the operator does not compute such a step.
        """
        if not is_forward_context_available():
            return None
        context = get_forward_context()
        metadata, slots = context.attn_metadata, context.slot_mapping
        if not (isinstance(metadata, dict) and isinstance(slots, dict)):
            return None
        places: list[RowsInPages] = []
        place, last = None, (None, None, 0)
        for name, window in zip(self._names, self._windows, strict=True):
            own = metadata.get(name), slots.get(name), window
            if any(map(operator.is_not, own, last)):  # most layers have the same
                place, last = rows_in_pages(*own, num_rows, plan.heads), own
            if place is None:
                return None
            places.append(place)
        runs = pieces_of(metadata[self._names[0]]).runs
        return places, plan.at_once(runs, torch.get_num_threads())

    def _current_plan(self) -> _Plan | None:
        """Return the plan; None if a layer is not, or not now, what the operator computes."""
        if not self._is_planned:  # weights are loaded, and adapters are in their places
            self._plan, self._is_planned = _plan_of(self._decoder), True
        return self._plan if self._plan is not None and self._plan.watched.are_unchanged else None

    def _compute(
        self,
        positions: torch.Tensor,
        x: torch.Tensor,
        plan: _Plan,
        places: list[RowsInPages],
        at_once: RowsAtOnce,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # vLLM's parameters have Python called for each operator that they are given to.
        with torch._C.DisableTorchFunctionSubclass():
            return decoder_rows(
                x,
                plan.weights,
                positions,
                plan.rotary._match_cos_sin_cache_dtype(x),
                plan.pages,
                places,
                is_neox=plan.rotary.is_neox_style,
                scale=plan.scale,
                at_once=at_once,
            )


def _plan_of(decoder: Any) -> _Plan | None:
    """Return how a loaded decoder is computed; None if a layer is not what the operator computes,
    or layers differ in what they have.
    """
    layers = decoder.layers
    if not (layers and has_stock_layers(decoder) and all(map(_is_computed, layers))):
        return None
    if len({*map(_shape_of, layers)}) > 1:
        return None
    found = [orders for layer in layers if (orders := _orders_of(layer)) is not None]
    return _Plan(decoder, found) if len(found) == len(layers) else None


def _is_computed(layer: Any) -> bool:
    """Whether the operator computes a layer."""
    attention, mlp = layer.self_attn, layer.mlp
    products = products_of(layer)
    return not (
        "forward" in vars(layer)
        or any(
            "forward" in vars(one) for part in (layer, attention, mlp) for one in part.children()
        )
        or any(type(one) is not kind for one, kind in zip(products, PRODUCTS, strict=True))
        or any(one.tp_size > 1 or one.skip_bias_add for one in products)
        or not all(map(_is_rounded_norm, norms_of(layer)))
        or not _calls(attention.rotary_emb, forward_rotary)
        or not (type(mlp.act_fn) is SiluAndMul and _calls(mlp.act_fn, forward_silu_and_mul))
        or not _attends_in_order(attention.attn, layer.input_layernorm.weight.dtype)
    )


def _shape_of(layer: Any) -> tuple[Any, ...]:
    """Return what is the same in all layers that the operator computes at once."""
    attention, norms = layer.self_attn, norms_of(layer)
    tensors = (source.get(name) for source, name in _parameters_of(layer))
    return (
        *(None if one is None else (one.shape, one.stride(), one.dtype) for one in tensors),
        *(norm.variance_epsilon for norm in (norms[0], norms[1])),
        len({norm.variance_epsilon for norm in norms[2:]}) <= 1,
        attention.rotary_emb,
        attention.attn.impl.scale,
        attention.attn.num_kv_heads,
    )


def _parameters_of(layer: Any) -> list[tuple[dict[str, torch.Tensor | None], str]]:
    """Return where the tensors of `LayerWeights` are, in their order there."""
    attention, mlp = layer.self_attn, layer.mlp
    none: dict[str, torch.Tensor | None] = {}
    of_heads = [norm._parameters for norm in head_norms(layer)] or [none, none]
    query_norm, key_norm = of_heads
    return [
        (layer.input_layernorm._parameters, "weight"),
        (attention.qkv_proj._parameters, "weight"),
        (attention.qkv_proj._parameters, "bias"),
        (query_norm, "weight"),
        (key_norm, "weight"),
        (attention.o_proj._parameters, "weight"),
        (attention.o_proj._parameters, "bias"),
        (layer.post_attention_layernorm._parameters, "weight"),
        (mlp.gate_up_proj._parameters, "weight"),
        (mlp.gate_up_proj._parameters, "bias"),
        (mlp.down_proj._parameters, "weight"),
        (mlp.down_proj._parameters, "bias"),
    ]


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


def _orders_of(layer: Any) -> _Orders | None:
    """Return in which orders rows are multiplied by the fork's own products, if they all are."""
    qkv, output, gate_up, down = map(_order_of, products_of(layer))
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return RowOrder(qkv), RowOrder(output), RowOrder(gate_up), RowOrder(down)


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
