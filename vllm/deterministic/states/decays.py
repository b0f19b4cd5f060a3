"""The parameter that decays come from, as Transformers loads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.model_executor.model_loader.weight_utils import sharded_weight_loader
from vllm.model_executor.utils import set_weight_attrs


def load_decays(layer: Any, name: str, dtype: torch.dtype) -> None:
    """Let a parameter be ``A_log`` of the checkpoint, in a dtype: vLLM has it in another one, or
    takes PyTorch's exponential of it, whose bits differ between machines.

    Args:
        layer: is not loaded yet.
        name: of the parameter, [heads].
        dtype: in which Transformers has it.
    """
    parameter = nn.Parameter(torch.empty_like(getattr(layer, name), dtype=dtype))
    set_weight_attrs(parameter, {"weight_loader": sharded_weight_loader(0)})
    setattr(layer, name, parameter)
