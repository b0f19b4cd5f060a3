"""``vllm.config``: what a model's and an engine's configuration ask of the flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.startup.without_torchvision import name_torchvision_without_it
from vllm.hf_layers.engine.float16 import allows_float16

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["allows_float16", "needs_v1_runner"]

name_torchvision_without_it()  # every process imports this module before a model's


def needs_v1_runner(vllm_config: VllmConfig) -> bool:
    """Return whether a flag needs the V1 model runner, for which the fork's samplers are."""
    return ForkFlags.of(vllm_config).has_sampler
