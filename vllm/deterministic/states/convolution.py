"""Convolutions over the last tokens of each channel, as parts of layers with states."""

from __future__ import annotations

from typing import Any

import torch

from vllm.fork.live_weights.packed import ReadsWeights
from vllm.model_executor.layers.linear import UnquantizedLinearMethod


class ConvolutionMethod(ReadsWeights, UnquantizedLinearMethod):
    """Keeps the weight of a convolution as it is: vLLM has it in a linear layer, but no layer
    multiplies with it.
    """

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack nothing."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """There is no product."""
        raise RuntimeError("deterministic mode: the weight of a convolution is no matrix.")
