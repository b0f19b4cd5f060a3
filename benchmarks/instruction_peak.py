"""How many products a second a core's instructions make: the least time that a product can take.

    python -m benchmarks.instruction_peak [--threads N]

A portable product is three products of 8-bit integers, of which ``vpdpbusd`` makes 64 and adds them
up; of bfloat16 ``vdpbf16ps`` makes 32. Both are timed by themselves, on registers, with a
compiler that is found on the machine. Where a product is bound by them and not by memory, the
last line is the most that the portable product can have of PyTorch's speed.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

PRODUCTS = {"vpdpbusd": 64, "vdpbf16ps": 32}
"""That an instruction of 512 bits makes."""

DIGIT_PRODUCTS = 3
_SUMS = range(8, 24)  # registers that do not wait for each other
_LOOPS = 4_000_000

Instruction = Callable[[ctypes.c_long], Any]
"""Repeats an instruction so many times for each of `_SUMS`."""

_FUNCTION = """
extern "C" void {name}(long loops) {{
  for (long i = 0; i < loops; ++i) asm volatile("{body}" : : : {changed});
}}
"""


def compiled(folder: Path) -> ctypes.CDLL:
    """Return a library with a function for each of `PRODUCTS`, which repeats its instruction."""
    changed = ", ".join(f'"zmm{n}"' for n in _SUMS)
    source = folder / "peak.cpp"
    bodies = {
        name: "".join(f"{name} %%zmm1, %%zmm2, %%zmm{n}\\n" for n in _SUMS) for name in PRODUCTS
    }
    source.write_text(
        "".join(
            _FUNCTION.format(name=name, body=body, changed=changed) for name, body in bodies.items()
        )
    )
    library = source.with_suffix(".so")
    command = ["g++", "-O2", "-mavx512f", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def peak(name: str, threads: int = 1) -> float:
    """Return the products a second of an instruction, of all threads together.

    Args:
        name: one of `PRODUCTS`. Without the instruction, the process ends.
        threads: that work at once.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(threads) as pool:
        function = getattr(compiled(Path(folder)), name)
        best = min(_seconds(function, threads, pool) for _ in range(5))
    return threads * _LOOPS * len(_SUMS) * PRODUCTS[name] / best


def _seconds(function: Instruction, threads: int, pool: ThreadPoolExecutor) -> float:
    """Return how long the slowest of some threads takes; ctypes lets them run side by side."""
    return max(pool.map(lambda _: _timed(function), range(threads)))


def _timed(function: Instruction) -> float:
    begin = time.perf_counter()
    function(ctypes.c_long(_LOOPS))
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    threads = parser.parse_args().threads
    peaks = {name: peak(name, threads) for name in PRODUCTS}
    for name, products in peaks.items():
        print(f"{name}: {products / 1e9:,.0f} G products/s with {threads} thread(s)")
    share = peaks["vpdpbusd"] / DIGIT_PRODUCTS / peaks["vdpbf16ps"]
    print(f"portable product / bfloat16, where instructions are the bound: at most {share:.2f}")


if __name__ == "__main__":
    main()
