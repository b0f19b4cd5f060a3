"""A small forward of an attached model under the guard, so that nothing is overlooked."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.opt.modeling_opt import OPTDecoder

from vllm.deterministic.guard import only_exact_operations_of
from vllm.hf_layers.engine.exact_models import cache_name

from .interface import note_positions

_DRAWS = {OPTDecoder: ("aten::rand",)}
"""What is drawn in training mode to be compared with a rate of dropout, which is 0."""


@torch.no_grad()
def rehearse(model: Any, *, with_cache: bool = True) -> None:
    """Run a batch with padding, and one more token with the cache, with exact operations only.

    Args:
        model: is attached.
        with_cache: False leaves the second part out.

    Raises:
        InexactOperationError: the model calls another one; the sentence names it and the module.
    """
    mask, ids, positions = torch.tensor(
        [[[0, 1, 1], [1, 1, 1]], [[0, 1, 2], [2, 1, 0]], [[0, 0, 1], [0, 1, 2]]],
        device=model.device,
    )
    note_positions(positions, mask)
    with only_exact_operations_of(model, also_in=_DRAWS):
        done = model(ids, attention_mask=mask, position_ids=positions, use_cache=with_cache)
        if not with_cache:
            return
        name = cache_name(model)
        note_positions(positions[:, -1:] + 1, mask)
        model(
            ids[:, :1],
            attention_mask=torch.cat((mask, mask[:, 1:2]), dim=1),
            position_ids=positions[:, -1:] + 1,
            use_cache=True,
            **{name: getattr(done, name)},
        )
