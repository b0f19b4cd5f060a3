"""Small tensors that a step makes on the CPU and needs on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vllm.utils.torch_utils import async_tensor_h2d


def on_device(
    values: Sequence[int] | Sequence[float] | np.ndarray | torch.Tensor,
    device: torch.device,
    dtype: torch.dtype = torch.int64,
) -> torch.Tensor:
    """Return numbers as a tensor of a device, without waiting for what it has to do before.

    ``torch.tensor(values, device=...)``, ``tensor.to(device)`` and lists as indices wait until a
    GPU has done all that was queued, so that no step is prepared while the last one is computed.

    Args:
        values: numbers of any shape, on the CPU.
        device: the tensor's.
        dtype: of the tensor.

    Returns:
        A tensor that, on the CPU, may share the memory of `values`.
    """
    if device.type == "cpu":  # pinning memory would take hold of a GPU, where there is one
        return torch.as_tensor(values, dtype=dtype)
    return async_tensor_h2d(values, device, dtype)
