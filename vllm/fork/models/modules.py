"""Names modules by their classes, and puts others in the place of a model's."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replace_modules(
    model: nn.Module, replacement: Callable[[str, nn.Module], nn.Module | None]
) -> None:
    """Put what `replacement` returns in the place of each module of a model.

    Args:
        model: changed in place.
        replacement: gets a module's name and the module; None, or the module itself, leaves it. A
            module that stands in several places is asked about once, by the first of its names.
    """
    replaced: dict[int, nn.Module | None] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if id(module) not in replaced:
            replaced[id(module)] = replacement(name, module)
        new = replaced[id(module)]
        if new is not None and new is not module:
            put_module(model, name, new)


def class_name(module: nn.Module) -> str:
    """Return where a module's class is, to tell it without importing the file that has it."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def put_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Let `model` have `module` under the name of one that it has."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
