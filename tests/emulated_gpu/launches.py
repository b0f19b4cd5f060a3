"""The launches of emulated kernels: how many there are, and that they may begin early."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.emulated_gpu.library import EMULATED

_NO_LAUNCH = ("empty", "new_empty", "empty_like", "empty_strided", "_unsafe_view")


def has_launches(func: Any) -> bool:
    """Whether an operation of PyTorch reads or writes numbers."""
    return not func.is_view and func._schema.name.partition("::")[2] not in _NO_LAUNCH


class Launches:
    """Those of the emulated operations of this process.

    A kernel may begin while the one before still runs: see csrc/emulation/launches.h. So it runs
    when the next one is launched, or another operation needs its results; until then arguments and
    results are kept.

    Args:
        library: the operations.
    """

    def __init__(self, library: Path | str) -> None:
        torch.ops.load_library(str(library))
        self._library = ctypes.CDLL(str(library))
        self._library.emulated_launches.restype = ctypes.c_int64
        self._library.finish_launches.restype = ctypes.c_char_p
        self._kept: list[Any] = []

    def count(self) -> int:
        """Return how many there were."""
        count: int = self._library.emulated_launches()
        return count

    def begin(self, func: Any, *arguments: Any) -> None:
        """Let the kernels of an operation of the fork begin early, and finish before any other."""
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "vllm_fork" and name in EMULATED:
            self._library.defer_launches()
            self.keep(arguments)
        elif has_launches(func):
            self.finish()

    def keep(self, memory: Any) -> None:
        """Keep what launches may still need."""
        self._kept.append(memory)

    def finish(self) -> None:
        """Wait for all launches.

        Raises:
            RuntimeError: the emulation has found a fault.
        """
        said = self._library.finish_launches().decode()
        self._kept.clear()
        if said:
            raise RuntimeError(said)


_loaded: list[Launches] = []


@cache
def load(library: Path | str) -> Launches:
    """Load the operations, once in a process."""
    _loaded.append(Launches(library))
    return _loaded[-1]


def loaded() -> Launches:
    """Return those of the operations that were loaded."""
    return _loaded[-1]
