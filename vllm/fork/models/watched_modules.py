"""Whether the modules of a model can be computed without being called: nobody would notice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

import torch.nn.modules.module as torch_module
from torch import nn
from torch.utils.hooks import RemovableHandle

_FORWARD = attrgetter("forward")
_EPSILON = attrgetter("variance_epsilon")


class WatchedModules:
    """The modules that some modules call, as they are now.

    What an instance says of how it computes is looked at when it is first asked about, since an
    engine that is being made may still give its modules a ``forward``.

    Args:
        parents: the modules that call them, and are called by others of these.
        root: is called by nobody, and is looked at, too; or None.
    """

    def __init__(self, parents: Iterable[nn.Module], root: nn.Module | None = None) -> None:
        self._parts: list[dict[str, Any]] = [module._modules for module in parents]
        if root is not None:
            self._parts += {"": root}, root._modules
        self._values = self._current_values()
        self._children: list[nn.Module] = [one for one in self._values if one is not None]
        self._hooks: list[Any] = [
            torch_module._global_forward_hooks,
            torch_module._global_forward_pre_hooks,
        ]
        for module in self._children:
            self._hooks += module._forward_hooks, module._forward_pre_hooks
        self._last_hook: int | None = None  # when there was none on these modules
        self._own: list[dict[str, Any]] = [vars(module) for module in self._children]
        self._kinds = self._current_kinds()
        self._classes: list[Any] = [*{*self._kinds}]
        self._class_forwards = self._current_class_forwards()
        self._norms = [one for one in self._children if hasattr(one, "variance_epsilon")]
        self._epsilons = self._current_epsilons()
        self._forwards: list[Any] | None = None

    @classmethod
    def of_decoder(cls, decoder: Any, root: nn.Module | None = None) -> WatchedModules:
        """Return those of a model without its head, as ``LlamaModel``: of the model, its layers,
        and their attention and MLPs; and of the whole model, if it is given.
        """
        parts = [part for one in decoder.layers for part in (one, one.self_attn, one.mlp)]
        return cls([decoder, decoder.layers, *parts], root)

    @property
    def are_unchanged(self) -> bool:
        """Whether no module was replaced or computes otherwise, and no hook is called between."""
        if self._forwards is None:
            self._forwards = self._current_forwards()
        return (
            self._have_no_hooks()
            and self._current_values() == self._values
            and self._current_kinds() == self._kinds
            and self._current_forwards() == self._forwards
            and self._current_class_forwards() == self._class_forwards
            and self._current_epsilons() == self._epsilons
        )

    @property
    def have_own_forward(self) -> bool:
        """Whether an instance, and not its class, says how one of them computes."""
        return any("forward" in own for own in self._own)

    def _have_no_hooks(self) -> bool:
        """Look at all modules only if a hook was registered since, on any module or tensor."""
        last_hook = RemovableHandle.next_id
        if last_hook != self._last_hook:
            if any(self._hooks):
                return False
            self._last_hook = last_hook
        return True

    # A step asks for all of these; `map` goes through them faster than a loop does.

    def _current_values(self) -> list[nn.Module | None]:
        return [*chain.from_iterable(map(dict.values, self._parts))]

    def _current_kinds(self) -> list[type]:
        return [*map(type, self._children)]

    def _current_forwards(self) -> list[Any]:
        return [*map(dict.get, self._own, repeat("forward"))]

    def _current_class_forwards(self) -> list[Any]:
        return [*map(_FORWARD, self._classes)]

    def _current_epsilons(self) -> list[float]:
        return [*map(_EPSILON, self._norms)]
