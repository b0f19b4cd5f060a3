"""Names and shapes of an update are tried before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from vllm.distributed import get_tp_group
from vllm.fork.live_weights.staging import with_data
from vllm.fork.live_weights.writes import Writes


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


def check_numbers(loaded: torch.Tensor) -> None:
    """Refuse a weight that is NaN throughout, as parameters of an engine read that it keeps packed.

    Raises:
        ValueError: it is.
    """
    if not loaded.dtype.is_floating_point or not loaded.numel() or loaded.is_meta:
        return
    first = loaded[(0,) * loaded.dim()]
    if first.isnan() and loaded.isnan().all():
        raise ValueError(
            "it is NaN throughout, as parameters of an engine are whose numbers it keeps packed"
        )


def check_all_is_used(loaded: torch.Tensor, num_copied: int) -> None:
    """Refuse a weight of which a loader has taken a part, where there is one rank for all of it.

    Raises:
        ValueError: it is larger than the model's.
    """
    if 0 < num_copied < loaded.numel() and get_tp_group().world_size == 1:
        raise ValueError(f"it has {loaded.numel()} numbers, and the model takes {num_copied}")


def rehearse(
    form: torch.Tensor, loader: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Any, Writes]:
    """Call a loader with a parameter that is like `form`, and like it has no memory.

    Returns:
        what it returned, and what it would have written.

    Raises:
        Exception: whatever the loader raises if the shapes do not fit.
    """
    param = with_data(form, torch.empty_like(form.data))
    with Writes(param) as writes:
        result = loader(param, *args, **kwargs)
    return result, writes
