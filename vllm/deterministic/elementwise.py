"""The module that takes the place of activations, in vLLM's models and in Transformers'."""

from __future__ import annotations

import torch
from torch import nn

from vllm.deterministic.fusion import Source
from vllm.fork_kernels.portable.functions import Function, portable_map


class PortableActivation(nn.Module):
    """A function of each element.

    Args:
        function: the activation.
    """

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self._source = Source()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of x [...], in its dtype."""
        return self._source.made(portable_map(x.contiguous(), self.function, self._source.consumer))
