"""Compiles kernels for the CPU, with the emulation of CUDA in csrc/emulation."""

import ctypes
import subprocess
from pathlib import Path

import torch

from tests.emulated_gpu.library import CSRC, EMULATION

OPTIONS = (
    *(*EMULATION, "-shared"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{CSRC}"),
)


FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""``vllm_fork::Format``."""

GUARD = 64
GARBAGE = 0xAB


def compile_emulation(source: Path, folder: Path, *options: str) -> ctypes.CDLL:
    """Return the library that g++ makes of a C++ file which includes kernels.

    Args:
        source: the file.
        folder: for the library.
        options: of g++, before the others.
    """
    path = folder / source.with_suffix(".so").name
    done = subprocess.run(
        ["g++", *options, *OPTIONS, str(source), "-o", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return ctypes.CDLL(str(path))


class Guarded:
    """A tensor full of garbage, with guards around it."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        size = torch.Size(shape).numel() * dtype.itemsize
        self.memory = torch.full((size + 2 * GUARD,), GARBAGE, dtype=torch.uint8)
        self.tensor = self.memory[GUARD : GUARD + size].view(dtype).view(shape)

    def checked(self) -> torch.Tensor:
        ends = torch.cat([self.memory[:GUARD], self.memory[-GUARD:]])
        assert (ends == GARBAGE).all(), "a kernel has written beside its result"
        return self.tensor.clone()


def pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
