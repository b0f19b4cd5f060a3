"""A small forward of an attached model under the guard, so that nothing is overlooked."""

from __future__ import annotations

from typing import Any

import torch

from vllm.deterministic.fusion import fused_products
from vllm.deterministic.guard import only_exact_operations_of


@torch.no_grad()
def rehearse(model: Any) -> None:
    """Run a batch with padding, and one more token with the cache, with exact operations only.

    Raises:
        InexactOperationError: the model calls another one; the sentence names it and the module.
    """
    mask, ids, positions = torch.tensor(
        [[[0, 1, 1], [1, 1, 1]], [[0, 1, 2], [2, 1, 0]], [[0, 0, 1], [0, 1, 2]]],
        device=model.device,
    )
    with fused_products(model.device), only_exact_operations_of(model):
        done = model(ids, attention_mask=mask, position_ids=positions, use_cache=True)
        model(
            ids[:, :1],
            attention_mask=torch.cat((mask, mask[:, 1:2]), dim=1),
            position_ids=positions[:, -1:] + 1,
            past_key_values=done.past_key_values,
            use_cache=True,
        )
