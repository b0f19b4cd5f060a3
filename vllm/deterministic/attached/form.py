"""Gives a module another forward and leaves it what it is.

A layer that PEFT, an optimizer or a checkpoint of Transformers looks for must still be found, by
its class, its name and its parameters. So a module is not replaced: its class is changed to a
subclass, as ``torch.nn.utils.parametrize`` does.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .following import Following

__all__ = ["Form", "become", "followings", "leave_own_class"]


class Form:
    """The portable forward of a module, mixed into the module's own class."""

    def own_followings(self) -> list[Following[Any]]:
        """Return what the form reads that follows parameters."""
        return [one for one in vars(self).values() if isinstance(one, Following)]


_CLASSES: dict[tuple[type[Form], type[nn.Module]], type[nn.Module]] = {}
"""Those that were made."""


def become(module: nn.Module, form: type[Form], **attributes: Any) -> None:
    """Change the class of a module to that of a form on top of its own.

    Args:
        module: changed in place; a module that has a form already is left alone.
        form: goes before the module's own class.
        attributes: that the form reads.
    """
    if not isinstance(module, Form):
        module.__dict__.update(attributes)
        module.__class__ = _class_of(form, type(module))


def leave_own_class(module: Any) -> None:
    """Let a module that has a form be that alone, and of no class that others know."""
    form = next(one for one in type(module).__bases__ if issubclass(one, Form))
    module.__class__ = _class_of(form, nn.Module)


def _class_of(form: type[Form], own: type[nn.Module]) -> type[nn.Module]:
    if (form, own) not in _CLASSES:
        named: type = form if own is nn.Module else own
        members = {"__module__": named.__module__, "__qualname__": named.__qualname__}
        _CLASSES[form, own] = type(named.__name__, (form, own), members)
    return _CLASSES[form, own]


def followings(model: nn.Module) -> list[Following[Any]]:
    """Return all that follows parameters of a model, each once."""
    forms = [module for module in model.modules() if isinstance(module, Form)]
    found = {id(one): one for form in forms for one in form.own_followings()}
    return list(found.values())
