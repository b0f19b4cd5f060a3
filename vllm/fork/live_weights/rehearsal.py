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


def check_kind(form: torch.Tensor, loaded: torch.Tensor) -> None:
    """Refuse numbers that a parameter cannot hold, although PyTorch would convert them.

    Args:
        form: of the parameter; one with other numbers than floating point takes any.
        loaded: float16, bfloat16, float32 or float64 of any parameter of these.

    Raises:
        ValueError: they are integers, complex, or of fewer bits than a layer without scales reads.
    """
    is_whole = loaded.dtype.is_floating_point and loaded.dtype.itemsize >= 2
    if form.dtype.is_floating_point and form.dtype.itemsize >= 2 and not is_whole:
        raise ValueError(f"it is {loaded.dtype}, and the model's is {form.dtype}")


def rehearse(form: torch.Tensor, loader: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a loader with a parameter that is like `form`, and like it has no memory.

    Raises:
        Exception: whatever the loader raises if the shapes do not fit.
    """
    return loader(with_data(form, torch.empty_like(form.data)), *args, **kwargs)
