"""Hooks, and forwards of instances, that may not fit what takes a module's place."""

from __future__ import annotations

from torch import nn

from ..refusal import attach_refusal as refusal
from .form import Form


def modules_with_hooks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules, by name, that call more than the forward of their class."""
    return {
        name: module
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    }


def check_they_stay(
    model: nn.Module, modules: dict[str, nn.Module], *, training: bool = False
) -> None:
    """Refuse a model in which one of them was replaced, or is to be sealed.

    Args:
        model: afterwards.
        modules: of `modules_with_hooks`, before.
        training: whether the model is to be trained; its forms keep their parameters.

    Raises:
        ValueError: names the first.
    """
    there = dict(model.named_modules())
    for name, module in modules.items():
        if there.get(name) is not module or (isinstance(module, Form) and not training):
            raise refusal(
                name,
                "it has a hook or a forward of its own, which may not fit what takes its place: "
                "register hooks after attach()",
            )
