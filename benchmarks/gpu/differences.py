"""Which elements of two tensors have other bits."""

from __future__ import annotations

from typing import Any

import torch

MOST_ELEMENTS = 5
"""Of a tensor, whose values are kept."""

_PIECE = 1 << 20
"""Elements that are searched at once."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bits, integers of its shape, on the CPU."""
    on_cpu = x.detach().cpu().contiguous()
    return on_cpu if on_cpu.dtype == torch.bool else on_cpu.view(_INTEGERS[x.element_size()])


def difference(here: torch.Tensor, there: torch.Tensor) -> dict[str, Any] | None:
    """Return what differs between a device's tensor and the CPU's; None if no bit does.

    Returns:
        How many elements differ, of how many; the places and both values of the first ones, and the
        largest distance between two values, as far as that is finite.
    """
    if here.shape != there.shape or here.dtype != there.dtype:
        kinds = [f"{x.dtype} {list(x.shape)}" for x in (here, there)]
        return {"differ": there.numel(), "of": there.numel(), "kinds": kinds}
    differs = bits(here) != bits(there)
    count = int(differs.sum())
    if not count:
        return None
    ours, theirs = here.cpu(), there.cpu()
    distances = (ours.float() - theirs.float()).abs_()
    return {
        "differ": count,
        "of": there.numel(),
        "largest": float(distances.nan_to_num_(0.0, posinf=0.0).max()),
        "first": [
            {
                "place": place,
                "here": float(ours[tuple(place)]).hex(),
                "cpu": float(theirs[tuple(place)]).hex(),
            }
            for place in _first_places(differs)
        ],
    }


def _first_places(differs: torch.Tensor) -> list[list[int]]:
    """Return where the first elements are True, of maybe very many."""
    flat, found = differs.flatten(), torch.empty(0, dtype=torch.int64)
    for start in range(0, len(flat), _PIECE):
        places = flat[start : start + _PIECE].nonzero()[:, 0] + start
        found = torch.cat((found, places))[:MOST_ELEMENTS]
        if len(found) == MOST_ELEMENTS:
            break
    return torch.stack(torch.unravel_index(found, differs.shape), dim=1).tolist()
