"""Refuses dropout, whose draws no engine repeats."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ..refusal import attach_refusal as refusal

__all__ = ["refuse_dropout"]


def refuse_dropout(model: nn.Module) -> None:
    """Refuse a model with dropout.

    Raises:
        ValueError: a module has a rate of dropout above 0; the sentence names it.
    """
    for name, module in model.named_modules():
        for attribute, rate in _rates(module):
            raise refusal(
                f"{name}.{attribute} = {rate}",
                "dropout draws at random, which no engine repeats: set it to 0, best in the "
                "configuration that the model or the adapter is made with",
            )


def _rates(module: nn.Module) -> Iterator[tuple[str, float]]:
    """Yield the rates of dropout of a module; its own code may apply those it keeps as numbers."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        if module.p > 0:
            yield "p", module.p
        return
    for attribute, value in vars(module).items():
        if "drop" in attribute and isinstance(value, float) and value > 0:
            yield attribute, value
