"""Runs tests with MKL told that it is on another CPU than it is on: python another_cpu.py KIND ...

MKL has kernels for each set of instructions, and adds in another order in each. It uses those of
AVX2 and AVX-512 on Intel's CPUs alone; a CPU of another maker that has the instructions can run
them all the same, if MKL's own look at the CPU is made to find one. The first line that is printed
is an order.
"""

import ctypes
import mmap
import sys
from pathlib import Path

import pytest
import torch

from vllm.hf_layers.products.single_row_products import RowPlan

KINDS = {"sse": 0, "avx2": 5, "avx512": 7}
"""What ``mkl_serv_cpu_detect`` returns."""


def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))


def pretend(kind: str) -> None:
    """Let the function return a constant: ``mov eax, KIND; ret``. Call it before MKL is used."""
    looks = ctypes.cast(library().mkl_serv_cpu_detect, ctypes.c_void_p).value
    assert looks is not None
    page = looks // mmap.PAGESIZE * mmap.PAGESIZE
    readable, writable, executable = 1, 2, 4
    changed = ctypes.CDLL(None).mprotect(
        ctypes.c_void_p(page), 2 * mmap.PAGESIZE, readable | writable | executable
    )
    assert changed == 0
    ctypes.memmove(looks, b"\xb8" + KINDS[kind].to_bytes(4, "little") + b"\xc3", 6)


if __name__ == "__main__":
    pretend(sys.argv[1])
    print(RowPlan.of_weight(torch.empty(768, 256), has_bias=False).order)
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[2:]]))
