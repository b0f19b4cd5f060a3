"""What of an engine changes how it computes a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.platforms import current_platform

Steps = torch.Tensor
"""The logits of a text, [steps, vocab_size]: after it, and after each new token but the last."""


@dataclass(frozen=True)
class EngineSetting:
    """What of an engine changes how it computes a model.

    Attributes:
        flags: of the engine.
        dtype: of its model, by torch's name.
        model_impl: whose definition it has, as ``EngineArgs.model_impl``.
        attention: Transformers' implementation of attention; None for its own choice.
        remote_code: whether the model's own code may be run.
    """

    flags: ForkFlags
    dtype: str
    model_impl: str = "auto"
    attention: str | None = None
    remote_code: bool = False

    @property
    def expects_bits(self) -> bool:
        """Whether the engine is to have the bits of Transformers, or of a model in `attach`."""
        is_of_hf = self.dtype != "float32" and current_platform.is_cpu()
        is_own = self.flags.is_portable or self.flags.hf_compat == "exact"
        return is_own or (self.flags.has_hf_layers and is_of_hf)

    def of_values(self, dtype: str | None = None) -> EngineSetting:
        """Return a setting in which the definition alone decides on values.

        Args:
            dtype: None for that in which values are told apart best: float32 on CPUs, and the
                engine's own elsewhere, where kernels are made for it.
        """
        if dtype is None:
            dtype = "float32" if current_platform.is_cpu() else self.dtype
        flags = ForkFlags(hf_compat=self.flags.hf_compat or self.flags.is_portable)
        return replace(self, dtype=dtype, flags=flags)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def of_json(cls, plain: dict[str, Any]) -> EngineSetting:
        """Return the setting that `as_json` made plain."""
        return cls(**{**plain, "flags": ForkFlags(**plain["flags"])})
