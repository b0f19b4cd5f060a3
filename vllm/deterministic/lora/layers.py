"""Gives vLLM's linear layers with LoRA adapters portable bits, or says which one cannot have them.

vLLM wraps the layers of a model when it is loaded and gives each wrapper the weights of an adapter
with a slot. Here these are packed, once, and take the place of the slots' tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn

from vllm.deterministic.linear import adds_ranks, sums_of_ranks, whole_bias
from vllm.deterministic.lora.adapters import Expansion, PackedAdapter
from vllm.deterministic.refusal import refusal
from vllm.fork_kernels.portable.product import (
    channel_statistics,
    equalising_exponents,
    pack_weight,
    sum_partials,
)
from vllm.lora.layers import (
    ColumnParallelLinearWithLoRA,
    LogitsProcessorWithLoRA,
    MergedColumnParallelLinearVariableSliceWithLoRA,
    MergedColumnParallelLinearWithLoRA,
    MergedQKVParallelLinearWithLoRA,
    QKVParallelLinearWithLoRA,
    ReplicatedLinearWithLoRA,
    RowParallelLinearWithLoRA,
    VocabParallelEmbeddingWithLoRA,
)
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)

Weights = torch.Tensor | Sequence[torch.Tensor | None]

_WRAPPERS = (
    ColumnParallelLinearWithLoRA,
    MergedColumnParallelLinearVariableSliceWithLoRA,
    MergedColumnParallelLinearWithLoRA,
    MergedQKVParallelLinearWithLoRA,
    QKVParallelLinearWithLoRA,
    ReplicatedLinearWithLoRA,
    RowParallelLinearWithLoRA,
)
_LINEAR = (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
_EMBEDDINGS = (LogitsProcessorWithLoRA, VocabParallelEmbeddingWithLoRA)


class LayerAdapters:
    """The adapters of a linear layer, by their slots.

    Args:
        layer: vLLM's wrapper of the layer.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._adapters: dict[int, PackedAdapter] = {}

    def reset(self, index: int) -> None:
        """Empty a slot (``BaseLayerWithLoRA.reset_lora``)."""
        self._adapters.pop(index, None)

    def set(self, index: int, lora_a: Weights, lora_b: Weights) -> None:
        """Pack an adapter into a slot (``BaseLayerWithLoRA.set_lora``).

        Args:
            index: of the slot.
            lora_a: [LoRA rank, in_features], or of each part of the layer, None without an adapter.
            lora_b: [out_features, LoRA rank] likewise, times the adapter's scale; of all ranks.

        Raises:
            RuntimeError: a number is not finite, or too large.
        """
        self.reset(index)
        parts = _parts(self._layer, lora_a, lora_b)
        if any(a is not None for a, _ in parts):
            self._adapters[index] = _packed(self._layer, parts)

    def apply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the layer's product, with each row's adapter (``BaseLinearLayerWithLoRA.apply``).

        Args:
            x: bfloat16 or float16 [..., in_features], of this rank.
            bias: [out_features] or None.

        Returns:
            [..., out_features], of the dtype of `x`.
        """
        layer = self._layer.base_layer
        rows = x.flatten(0, -2)
        slots = self._layer.punica_wrapper.token_lora_indices[: len(rows)]
        # In the order of the rows, for ranks exchange numbers here, and each numbers its slots.
        present = [slot for slot in dict.fromkeys(slots.tolist()) if slot in self._adapters]
        if not present:
            return layer.quant_method.apply(layer, x, bias)
        sums = layer.quant_method.sums(layer, rows)
        share = torch.zeros_like(sums)
        for slot in present:
            own = (slots == slot).nonzero().squeeze(1)
            reduced = self._adapters[slot].reduce(rows[own])
            if adds_ranks(layer):
                reduced = sum_partials(sums_of_ranks(reduced))
            self._adapters[slot].expand(reduced, share, own)
        product = sum_partials(torch.stack((sums, share)), whole_bias(layer, bias), x.dtype)
        return product.view(*x.shape[:-1], -1)


def _parts(
    layer: Any, lora_a: Weights, lora_b: Weights
) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
    """Return A and B of each part of a layer, None without an adapter."""
    if isinstance(lora_a, torch.Tensor):
        lora_a = [lora_a] * layer.n_slices
    if isinstance(lora_b, torch.Tensor):
        sizes = layer.base_layer.output_sizes if layer.n_slices > 1 else [len(lora_b)]
        lora_b = lora_b.split(sizes)
    if len(lora_b) != layer.n_slices:  # q, k and v in one, and a fourth part
        lora_a, lora_b = layer.expand_packed_lora(lora_a, lora_b)
    pairs = zip(lora_a, lora_b, strict=True)
    return [(None, None) if a is None or b is None else (a, b) for a, b in pairs]


def _packed(
    layer: Any, parts: list[tuple[torch.Tensor | None, torch.Tensor | None]]
) -> PackedAdapter:
    """Pack what this rank has of an adapter; its channels' exponents are those of all ranks."""
    whole = torch.cat([a for a, _ in parts if a is not None]).contiguous()
    exponents = equalising_exponents(channel_statistics(whole))
    num_ranks = layer.tp_size if adds_ranks(layer.base_layer) else 1
    if num_ranks > 1:
        whole = layer.slice_lora_a(whole).contiguous()
        exponents = layer.slice_lora_a(exponents.unsqueeze(0)).squeeze(0).contiguous()
    reduction = pack_weight(whole, exponents, parts=num_ranks)
    expansions: list[Expansion] = []
    lora_rank = output = 0
    rows = _rows_of_rank(layer, [b for _, b in parts])
    for (_, b), own, size in zip(parts, rows, layer.output_slices, strict=True):
        if b is not None and own is not None:
            exponents = equalising_exponents(channel_statistics(b.contiguous()))
            weight = pack_weight(own.contiguous(), exponents)
            lora_ranks = slice(lora_rank, lora_rank + b.shape[1])
            expansions.append(Expansion(lora_ranks, slice(output, output + size), weight))
            lora_rank = lora_ranks.stop
        output += size
    return PackedAdapter(reduction, expansions)


def _rows_of_rank(layer: Any, weights: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    if layer.tp_size == 1:
        return weights
    if layer.n_slices == 1:
        return [layer.slice_lora_b(weights[0])]
    return layer.slice_lora_b(weights)


def use_portable_adapters(model: nn.Module) -> None:
    """Give the layers that vLLM wrapped for adapters portable bits; nothing without adapters.

    Raises:
        ValueError: a layer's adapters are not specified; the sentence names it.
    """
    manager: Any = getattr(model, "lora_manager", None)
    if manager is None:
        return
    for wrapper in manager.punica_wrapper_mapping.values():
        wrapper._token_lora_indices.fill_(-1)  # until the first step there are no adapters
    for name, layer in manager.modules.items():
        if isinstance(layer, _EMBEDDINGS):
            _refuse_adapters(name, layer)
        elif type(layer) in _WRAPPERS and type(layer.base_layer) in _LINEAR:
            _use_adapters(layer)
        else:
            raise refusal(name, layer, "adapters of this kind of layer are not specified")
    manager.activate_adapter = partial(_activate, manager, manager.activate_adapter)


def _use_adapters(layer: Any) -> None:
    adapters = LayerAdapters(layer)
    layer.reset_lora, layer.set_lora, layer.apply = adapters.reset, adapters.set, adapters.apply
    for slots in ("lora_a_stacked", "lora_b_stacked"):
        setattr(layer, slots, tuple(_without_slots(tensor) for tensor in getattr(layer, slots)))


def _refuse_adapters(name: str, layer: Any) -> None:
    def refuse(index: int, lora_a: Weights, lora_b: Weights) -> NoReturn:
        raise refusal(name, layer, "adapters of embeddings and of the head are not specified")

    layer.reset_lora, layer.set_lora = _do_nothing, refuse
    layer.forward = layer.base_layer.__call__
    for slots in ("lora_a_stacked", "lora_b_stacked", "lora_a_stacked_2d"):
        if hasattr(layer, slots):
            setattr(layer, slots, _without_slots(getattr(layer, slots)))


def _do_nothing(index: int) -> None:
    """There is no adapter that could be removed."""


def _without_slots(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(0, *tensor.shape[1:])


def _activate(manager: Any, activate: Callable[[int], bool], adapter_id: int) -> bool:
    """Give an adapter a slot, or forget it: vLLM would take half an adapter for a whole one."""
    try:
        return activate(adapter_id)
    except Exception:
        manager.remove_adapter(adapter_id)
        raise
