"""Layers of a model that others take the place of, and give it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class NotServedError(ValueError):
    """An adapter is more than layers beside those of the model."""


class LayerExchange:
    """What another library's layers do to a model, which can be undone and done again.

    Args:
        model: as it is without them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own: list[tuple[nn.Module, str, nn.Module | None]] = []
        self._others: list[tuple[nn.Module, str, nn.Module | None]] = []

    def put_in(self) -> None:
        """Let the others take their places in the model."""
        _set(self._others)

    def take_out(self) -> None:
        """Let the model's own layers have them again."""
        _set(self._own)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Remember which layers are exchanged in this context, and take them out at its end.

        Raises:
            NotServedError: weights of the model itself were changed; they are as before.
        """
        model = self._model
        children = [(module, dict(module._modules)) for module in model.modules()]
        attributes = dict(vars(model))
        weights = _Weights(model)
        try:
            yield
            self._compare(children)
        finally:
            for module, own in children:
                module._modules.clear()
                module._modules.update(own)
            for name in vars(model).keys() - attributes.keys():
                delattr(model, name)
            changed = weights.restore()
        if changed:
            raise NotServedError(
                f"it changes weights of the model itself ({', '.join(changed):.200}), which "
                "requests without it share"
            )

    def _compare(self, children: list[tuple[nn.Module, dict[str, nn.Module | None]]]) -> None:
        for module, own in children:
            for name, other in module._modules.items():
                if other is not own.get(name):
                    self._own.append((module, name, own.get(name)))
                    self._others.append((module, name, other))


class _Weights:
    """The weights of a model, into whose copies others may write.

    Adapters come with biases, and with whole embeddings, which are mostly those that the model has.
    Others are too large to be copied; nobody writes into them, but puts others in their place.

    Args:
        model: whose weights are exchanged for copies.
    """

    def __init__(self, model: nn.Module) -> None:
        embeddings = {id(_embeddings(model, kind)) for kind in ("input", "output")}
        self._weights = dict(model.named_parameters())
        self._data = {name: one.data for name, one in self._weights.items()}
        for name, one in self._weights.items():
            if name.endswith("bias") or id(one) in embeddings:
                one.data = one.data.clone()
        self._states = {name: _state(one) for name, one in self._weights.items()}

    def restore(self) -> list[str]:
        """Give the model its weights again; return the names of those that were changed."""
        changed = [
            name
            for name, one in self._weights.items()
            if _state(one) != self._states[name] and not _is_same(one, self._data[name])
        ]
        for name, one in self._weights.items():
            if one.data_ptr() != self._data[name].data_ptr():
                one.data = self._data[name]
        return changed


def _embeddings(model: nn.Module, kind: str) -> object:
    """Return the weight of a model's input or output embeddings; None if it has none."""
    layer_of = getattr(model, f"get_{kind}_embeddings", None)
    return getattr(layer_of(), "weight", None) if layer_of is not None else None


def _state(weight: nn.Parameter) -> tuple[int, int]:
    """Return what is another after a weight was written into, or has other numbers."""
    return weight.data_ptr(), weight._version


def _is_same(weight: torch.Tensor, data: torch.Tensor) -> bool:
    return weight.shape == data.shape and torch.equal(weight, data)


def _set(layers: list[tuple[nn.Module, str, nn.Module | None]]) -> None:
    for module, name, layer in layers:
        module._modules[name] = layer
