"""Engines on CPUs in a process that has imported llvmlite, as Numba does.

Why: To put kernels for CPUs into the place of Triton's, upstream asks the ``__dict__`` of all that
  modules hold for a kernel. llvmlite's library answers every name with a function, which is no
  dictionary, so that a script that imports Numba ends each of its engines.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/numba-cpu.md).
Exit condition: Upstream asks dictionaries alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.triton_utils import dispatcher


def ask_dictionaries_alone() -> None:
    """Give upstream's search a ``vars`` of its own: `dictionary_of`."""
    vars(dispatcher)["vars"] = dictionary_of


def dictionary_of(value: Any) -> Mapping[str, Any]:
    """Return ``vars(value)``, or nothing if that is no dictionary."""
    found: Any = vars(value)
    return found if isinstance(found, Mapping) else {}
