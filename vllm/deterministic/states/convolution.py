"""Convolutions over the last tokens of each channel, as parts of layers with states."""

from __future__ import annotations

from typing import Any

import torch

from vllm.deterministic.states.metadata import StatesMetadata
from vllm.fork.live_weights.packed import ReadsWeights
from vllm.fork_kernels.portable.states import portable_causal_conv
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


def convolve(
    conv: Any,
    x: torch.Tensor,
    states: torch.Tensor,
    metadata: StatesMetadata,
    activation: str | None,
) -> torch.Tensor:
    """Return the convolution of each request's tokens, and keep their last inputs.

    Args:
        conv: the linear layer that holds weight [channels, 1, width] and bias.
        x: bfloat16 or float16 [num_tokens, channels].
        states: [num_blocks, width - 1, channels], of the dtype of `x`.
        metadata: of the step.
        activation: "silu" or None.

    Returns:
        Like x.
    """
    return portable_causal_conv(
        x,
        conv.weight.data.squeeze(1),
        None if conv.bias is None else conv.bias.data,
        states,
        metadata.slots,
        metadata.query_start_loc,
        metadata.has_state,
        activation=activation,
    )
