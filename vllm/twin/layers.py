"""Chooses few layers of a model, so that there is one of each kind."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from vllm.twin.sizes import PARTS, PER_LAYER, Fields

MIN_LAYERS = 2
MAX_LAYERS = 12
"""Of the layers from the first on; where that would be more, one of each kind is chosen instead."""

_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_PER_STACK = "num_layers_per_stack"
"""Of HRM, which runs each stack several times: its layers are counted as often."""

_LIMITS = (
    *("max_window_layers", "first_k_dense_replace", "n_dense_layers", "moe_layer_start_index"),
    *("moe_layer_end_index", "num_dense_layers"),
)
"""Fields that name a layer by its number, or count the first of them."""

_LAST = ("num_kv_shared_layers",)
"""Fields that count the last layers."""

_NUMBERS = ("layer_idx", "layer_id", "layer_number", "layer_index", "kv_shared_layer_index")
"""Attributes that differ from layer to layer, and do not make another kind of it."""

_PLAIN = (bool, int, float, str, type(None))


def with_few_layers(
    fields: Fields, model: PreTrainedModel, most: int | None = MAX_LAYERS
) -> Fields:
    """Return a configuration with one layer of each kind at least, and two in all.

    Args:
        fields: with small sizes.
        model: of this configuration, with all layers; on the meta device.
        most: layers from the first on; where that is too few, single ones are chosen. None for any.
    """
    fields = {
        name: with_few_layers(dict(value), model, most) if name in PARTS and value else value
        for name, value in fields.items()
    }
    name = next((one for one in _COUNTS if isinstance(fields.get(one), int)), None)
    if name is None:
        return fields
    if count := fields.get(_PER_STACK):
        return {**fields, _PER_STACK: MIN_LAYERS, name: fields[name] // count * MIN_LAYERS}
    kinds = [*kinds_of_layers(model, fields[name])]
    chosen = _choose(kinds, most) if kinds else [*range(min(MIN_LAYERS, fields[name]))]
    return {
        one: _of_layers(one, value, fields[name], chosen) if one != name else len(chosen)
        for one, value in fields.items()
    }


def _choose(kinds: list[Hashable], most: int | None) -> list[int]:
    """Return the numbers of layers that a twin has."""
    firsts = sorted({kinds.index(kind) for kind in kinds})
    count = max(firsts[-1] + 1, MIN_LAYERS)
    if most is None or count <= most or len(firsts) == len(kinds):
        return [*range(min(count, len(kinds)))]
    return firsts if len(firsts) >= MIN_LAYERS else [*range(MIN_LAYERS)]


def _of_layers(name: str, value: Any, layers: int, chosen: list[int]) -> Any:
    """Return a field for the chosen layers alone."""
    if isinstance(value, list) and len(value) == layers:
        return [value[i] for i in chosen]
    if isinstance(value, int) and not isinstance(value, bool):
        if name in _LIMITS:
            return len(chosen) if value >= layers else sum(1 for i in chosen if i < value)
        if name in _LAST:
            return sum(1 for i in chosen if i >= layers - value)
    if name == PER_LAYER and isinstance(value, Mapping):
        return {chosen.index(int(i)): own for i, own in value.items() if int(i) in chosen}
    if _names_layers(name, value, layers):
        return [chosen.index(one) for one in value if one in chosen]
    return value


def _names_layers(name: str, value: Any, layers: int) -> bool:
    """Whether a field is a list of layers' numbers."""
    return (
        isinstance(value, list)
        and name.endswith(("layers", "layer_indices", "layer_ids"))
        and all(isinstance(one, int) and 0 <= one < layers for one in value)
    )


def kinds_of_layers(model: nn.Module, layers: int) -> Iterator[Hashable]:
    """Yield what tells each layer of the model's longest list of modules from others."""
    lists = [
        one for one in model.modules() if isinstance(one, nn.ModuleList) and len(one) == layers
    ]
    for layer in lists[0] if lists else ():
        yield tuple(_facts(layer))


def _facts(layer: nn.Module) -> Iterator[Hashable]:
    for name, module in layer.named_modules():
        yield name, type(module).__name__
        yield tuple(
            (own, tuple(weight.shape)) for own, weight in module.named_parameters(recurse=False)
        )
        for attribute, value in sorted(vars(module).items()):
            if attribute not in _NUMBERS and isinstance(value, _PLAIN):
                yield attribute, value
