"""Names and shapes of an update are tried before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from vllm.fork.live_weights.staging import with_data


def without_numbers(
    weights: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights by their names, with their shapes alone."""
    for name, tensor in weights:
        yield name, torch.empty_like(tensor, device="meta")


def rehearse(form: torch.Tensor, loader: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a loader with a parameter that is like `form`, and like it has no memory.

    Raises:
        Exception: whatever the loader raises if the shapes do not fit.
    """
    return loader(with_data(form, torch.empty_like(form.data)), *args, **kwargs)
