"""Finds and loads the compiled operators, ``_fork_C.abi3.so``."""

import functools
import logging
import os
from pathlib import Path

import torch

# Where the library is, if not in the root of the vllm package: for tests and kernel development.
LIBRARY_VARIABLE = "VLLM_FORK_LIBRARY"
LIBRARY_NAME = "_fork_C.abi3.so"

logger = logging.getLogger(__name__)


def library_path() -> Path:
    """The path at which the compiled operators are expected."""
    override = os.environ.get(LIBRARY_VARIABLE)
    return Path(override) if override else Path(__file__).parents[1] / LIBRARY_NAME


@functools.cache
def load() -> bool:
    """Load the compiled operators into ``torch.ops.vllm_fork``, once in a process.

    Returns:
        Whether they are there. If not, one warning has said why, and that the slower torch
        implementation is used.

    Raises:
        RuntimeError: The library is there, but ``VLLM_FORK_CPU_ISA`` asks for an instruction set
            that this CPU lacks. That is a wrong setting, and not a reason to be slower in silence.
    """
    path = library_path()
    try:
        if not path.is_file():
            raise OSError(f"there is no file {path}")
        torch.ops.load_library(str(path))
    except OSError as error:
        logger.warning(
            "The compiled operators of this vLLM distribution are not available: %s. "
            "The slower torch implementation is used.",
            error,
        )
        return False
    torch.ops.vllm_fork.cpu_isa()  # the choice is made here, and a wrong setting is found here
    return True


def has_kernel(name: str, device: torch.device) -> bool:
    """Whether an operator of ``torch.ops.vllm_fork`` is there for tensors of a device."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device.type)
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"vllm_fork::{name}", key
    )
