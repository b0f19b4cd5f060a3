"""The module that takes the place of activations, in vLLM's models and in Transformers'."""

from __future__ import annotations

import torch
from torch import nn

from vllm.deterministic.attached.gradients.functions import elementwise
from vllm.deterministic.fusion import Source
from vllm.fork_kernels.portable.functions import Function


class PortableActivation(nn.Module):
    """A function of each element; its gradient is for models that are attached to be trained.

    Args:
        function: the activation.
    """

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self._source = Source()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of x [...], in its dtype."""
        return self._source.made(elementwise(x, self.function, self._source.consumer))
