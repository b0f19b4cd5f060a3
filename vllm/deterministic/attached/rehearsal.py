"""A small forward of an attached model under the guard, so that nothing is overlooked."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from vllm.deterministic.guard import only_exact_operations


@torch.no_grad()
def rehearse(model: Any) -> None:
    """Run a batch with padding, and one more token with the cache, with exact operations only.

    Raises:
        InexactOperationError: the model calls another one; the sentence names it and the module.
    """
    names = {id(module): name for name, module in model.named_modules()}
    running = [type(model).__name__]

    def enter(module: nn.Module, arguments: Any) -> None:
        running.append(names.get(id(module)) or type(module).__name__)

    def leave(module: nn.Module, arguments: Any, result: Any) -> None:
        running.pop()

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    ids, positions = torch.tensor([[0, 1, 2], [2, 1, 0]]), torch.tensor([[0, 0, 1], [0, 1, 2]])
    try:
        with only_exact_operations(lambda: running[-1]):
            done = model(ids, attention_mask=mask, position_ids=positions, use_cache=True)
            model(
                ids[:, :1],
                attention_mask=torch.cat((mask, mask[:, 1:2]), dim=1),
                position_ids=positions[:, -1:] + 1,
                past_key_values=done.past_key_values,
                use_cache=True,
            )
    finally:
        for hook in hooks:
            hook.remove()
