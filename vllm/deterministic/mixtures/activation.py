"""What experts compute between their two products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from vllm.deterministic.attached.gradients.functions import elementwise, gated
from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.product import PackedWeight

__all__ = ["LEAST_PRODUCT", "ClampedGate", "ExpertActivation", "Gate"]

LEAST_PRODUCT = 2.0**-102
"""What is less counts 0, so that nothing is subnormal, where settings of processors differ."""


class ExpertActivation(ABC):
    """A function of the gate and of what it opens."""

    @abstractmethod
    def __call__(self, gate_up: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        """Return [num_tokens, intermediate_size], in the dtype of the argument.

        Args:
            gate_up: bfloat16 or float16 [num_tokens, 2 * intermediate_size].
            consumer: the weight that the result will be multiplied with; it changes no bit.
        """


@dataclass(frozen=True)
class Gate(ExpertActivation):
    """The function of the first half, times the second.

    Attributes:
        function: of the gate.
    """

    function: Function

    def __call__(self, gate_up: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        """As in `ExpertActivation`."""
        return gated(gate_up, self.function, consumer)


@dataclass(frozen=True)
class ClampedGate(ExpertActivation):
    """gpt-oss's ``(up + 1) * quick_gelu(gate)`` of clamped numbers; gate and up take turns.

    Source: ``GptOssExperts._apply_gate``.

    Attributes:
        limit: the gate is at most this, and up between it and its negative.
    """

    limit: float = 7.0

    def __call__(self, gate_up: torch.Tensor, consumer: PackedWeight | None) -> torch.Tensor:
        """As in `ExpertActivation`."""
        gate, up = gate_up[..., ::2].float(), gate_up[..., 1::2].float()
        gate = gate.masked_fill(gate > self.limit, self.limit)
        up = up.masked_fill(up > self.limit, self.limit)
        up = up.masked_fill(up < -self.limit, -self.limit)
        product = (up + 1.0) * elementwise(gate.contiguous(), Function.QUICK_GELU)
        return product.masked_fill(product.abs() < LEAST_PRODUCT, 0.0).to(gate_up.dtype)
