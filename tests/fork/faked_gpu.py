"""Importing this module makes vLLM believe in a GPU; nothing can be computed on it."""

from __future__ import annotations

import triton.backends

import vllm.platforms as platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class Hopper(NonNvmlCudaPlatform):
    """Answers as for one H100, without asking a driver."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "NVIDIA H100"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 80 << 30

    @classmethod
    def is_fully_connected(cls, device_ids: list[int]) -> bool:
        return True

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 132

    @classmethod
    def device_count(cls) -> int:
        return 1


platforms._current_platform = Hopper()
# Triton is there, and would have a driver; the metadata of the environment may be a CPU build's.
triton.backends.backends["nvidia"].driver.is_active = staticmethod(lambda: True)
platforms.vllm_version_matches_substr = lambda substr: False
