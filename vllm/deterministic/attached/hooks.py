"""Hooks, and forwards of instances, that a replaced module would take with it."""

from __future__ import annotations

from torch import nn

from ..refusal import attach_refusal as refusal


def modules_with_hooks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules, by name, that call more than the forward of their class."""
    return {
        name: module
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    }


def check_they_stay(model: nn.Module, modules: dict[str, nn.Module]) -> None:
    """Refuse a model in which one of them was replaced.

    Args:
        model: afterwards.
        modules: of `modules_with_hooks`, before.

    Raises:
        ValueError: names the first.
    """
    there = dict(model.named_modules())
    for name, module in modules.items():
        if there.get(name) is not module:
            raise refusal(
                name,
                "it has a hook or a forward of its own, which the module in its place would not "
                "have: register hooks after attach()",
            )
