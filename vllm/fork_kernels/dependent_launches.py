"""Whether kernels of a GPU begin while the one before still runs.

From compute capability 9.0 on those of deterministic mode do (programmatic dependent launch), and
wait by themselves for what they need. No bit depends on it.
"""

import torch

from vllm.fork_kernels import library

__all__ = ["dependent_launches"]


def dependent_launches(device: torch.device | str) -> str:
    """Say whether kernels of a GPU begin while the one before still runs, and if not, why.

    Args:
        device: a GPU.

    Returns:
        ``on``; or ``off: `` and the reason: ``VLLM_FORK_CUDA_DEPENDENT_LAUNCH=0``, the compute
        capability of the GPU, or that of the code which the library has for it. The variable is
        read when a kernel is launched on the GPU first, or this is called.

    Raises:
        RuntimeError: the library has no kernels for the device.
    """
    device = torch.device(device)
    if not library.has_kernel("dependent_launches", device):
        raise RuntimeError(f"the compiled operators have no kernels that {device} could launch.")
    return str(torch.ops.vllm_fork.dependent_launches(torch.empty(0, device=device)))
