"""Keeps what the modules of a model return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def recorded(model: torch.nn.Module, into: dict[str, torch.Tensor]) -> Iterator[None]:
    """Keep the first output of each module for a while, in the order in which they end.

    Args:
        model: whose modules are called for one text alone.
        into: by the name of the module, [tokens, size]; that of its first call alone.
    """
    handles = [
        module.register_forward_hook(_keeper(name, into))
        for name, module in model.named_modules()
        if name
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _keeper(name: str, into: dict[str, torch.Tensor]) -> Any:
    def keep(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, torch.Tensor) and first.dim() > 1 and name not in into:
            into[name] = first.detach().flatten(0, -2).clone()

    return keep
