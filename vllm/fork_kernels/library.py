"""Finds and loads the compiled operators, ``_fork_C.abi3.so``."""

import functools
import os
from pathlib import Path

import torch

# Where the library is, if not in the root of the vllm package: for tests and kernel development.
LIBRARY_VARIABLE = "VLLM_FORK_LIBRARY"
LIBRARY_NAME = "_fork_C.abi3.so"


def library_path() -> Path:
    """The path at which the compiled operators are expected."""
    override = os.environ.get(LIBRARY_VARIABLE)
    return Path(override) if override else Path(__file__).parents[1] / LIBRARY_NAME


@functools.cache
def load() -> None:
    """Load the compiled operators into ``torch.ops.vllm_fork``, once in a process.

    Raises:
        ImportError: the library is not there, or is none for this PyTorch; the sentence names it
            and what builds it.
        RuntimeError: ``VLLM_FORK_CPU_ISA`` asks for an instruction set that this CPU lacks.
    """
    path = library_path()
    try:
        if not path.is_file():
            raise OSError(f"there is no file {path}")
        torch.ops.load_library(str(path))
    except OSError as error:
        reason = error.__cause__ or error
        unset = f", or unset {LIBRARY_VARIABLE}" if LIBRARY_VARIABLE in os.environ else ""
        raise ImportError(
            f"This vLLM has no compiled operators ({reason}): build them with `pip install -e .` "
            f"in its repository, or install its wheel again{unset}.",
            path=str(path),
        ) from None
    cpu_isa()  # the choice is made here, and a wrong setting is found here


def cpu_isa() -> str:
    """Return the instruction set that the operators have on this CPU."""
    return str(torch.ops.vllm_fork.cpu_isa())


def has_kernel(name: str, device: torch.device) -> bool:
    """Whether an operator of ``torch.ops.vllm_fork`` is there for tensors of a device."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device.type)
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"vllm_fork::{name}", key
    )
