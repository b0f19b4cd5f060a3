"""Which layers of a Transformers model keep states in its cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.hf_model.generate_call import GenerateCall

_WRITES = ("update_conv_state", "update_recurrent_state")  # of ``Cache``


@torch.inference_mode()
def state_layers(call: GenerateCall) -> set[nn.Module]:
    """Return the modules that write states when a model computes a prompt: of those that are called
    at the time, the innermost.

    Args:
        call: of the model, which is called once.
    """
    cache = call.empty_cache()
    called: list[nn.Module] = []
    found: set[nn.Module] = set()

    def come_in(module: nn.Module, _: object) -> None:
        called.append(module)

    def come_out(module: nn.Module, *_: object) -> None:
        called.pop()

    for name in _WRITES:
        setattr(cache, name, _noting(getattr(cache, name), called, found))
    hooks = [
        hook
        for module in call.model.modules()
        for hook in (
            module.register_forward_pre_hook(come_in),
            module.register_forward_hook(come_out),
        )
    ]
    try:
        call(torch.zeros(1, 1, dtype=torch.int64, device=call.model.device), 0, cache)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _noting(write: Any, called: list[nn.Module], found: set[nn.Module]) -> Any:
    def note(*args: Any, **kwargs: Any) -> Any:
        found.add(called[-1])
        return write(*args, **kwargs)

    return note
