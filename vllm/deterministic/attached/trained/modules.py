"""The portable forwards of modules that keep their parameters."""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.product import PackedWeight

from ..gradients.functions import elementwise, gated
from ..gradients.norm import layer_norm, rms_norm
from ..gradients.product import product
from .classes import Form
from .weights import LayerWeights

__all__ = [
    "DifferentiableActivation",
    "TrainedGatedMLP",
    "TrainedHead",
    "TrainedLayerNorm",
    "TrainedLinear",
    "TrainedRMSNorm",
]


class TrainedLinear(Form):
    """``nn.Linear`` or ``Conv1D``.

    Attributes:
        portable_weights: of the layers that share its input.
    """

    portable_weights: LayerWeights
    weight: nn.Parameter
    bias: nn.Parameter | None

    @property
    def matrix(self) -> torch.Tensor:
        """The weight, [out_features, in_features]; ``Conv1D`` keeps it transposed."""
        return self.weight.t() if isinstance(self, Conv1D) else self.weight

    @property
    def packed(self) -> PackedWeight:
        """The weight as it is now, packed."""
        assert isinstance(self, nn.Module)
        return self.portable_weights.of_layer(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features], in its dtype."""
        return product(x, self.matrix, self.bias, self.packed)


class TrainedHead(TrainedLinear):
    """The output embedding: float32 logits.

    Attributes:
        portable_cap: logits become cap * tanh(logits / cap); None leaves them.
    """

    portable_cap: float | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, float32 [..., vocab_size], of x [..., hidden_size]."""
        logits = product(x, self.matrix, self.bias, self.packed, torch.float32)
        if self.portable_cap is None:
            return logits
        caps = logits.new_full((1,), self.portable_cap)  # a tensor, as in PortableHead
        return elementwise(logits / caps, Function.TANH) * caps


class TrainedRMSNorm(Form):
    """RMSNorm.

    Attributes:
        portable_epsilon: is added to the mean square.
        portable_offset: is added to the weight.
    """

    portable_epsilon: float
    portable_offset: float
    weight: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of the rows of x [..., size], in its dtype."""
        return rms_norm(x, self.weight, self.portable_epsilon, self.portable_offset)


class TrainedLayerNorm(Form):
    """LayerNorm.

    Attributes:
        portable_epsilon: is added to the variance.
    """

    portable_epsilon: float
    weight: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of the rows of x [..., size], in its dtype."""
        return layer_norm(x, self.weight, getattr(self, "bias", None), self.portable_epsilon)


class TrainedGatedMLP(Form):
    """``down_proj(f(gate) * up)``.

    Attributes:
        portable_inputs: the names of one layer that computes gate and up, or of two.
        portable_function: f.
    """

    portable_inputs: tuple[str, ...]
    portable_function: Function
    down_proj: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden_size] of x [..., hidden_size]."""
        halves = [getattr(self, name)(x) for name in self.portable_inputs]
        return self.down_proj(gated(torch.cat(halves, dim=-1), self.portable_function))


class DifferentiableActivation(nn.Module):
    """A function of each element; it has no parameters, so it takes an activation's place.

    Args:
        function: the activation.
    """

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of x [...], in its dtype."""
        return elementwise(x, self.function)
