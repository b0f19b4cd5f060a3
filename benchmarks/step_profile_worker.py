"""What a worker says of the time of its steps; called through ``collective_rpc``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_METHODS = ("execute_model", "sample_tokens")


class Watch:
    """Sums the time up that a worker's runner takes.

    Args:
        runner: its methods are replaced until `stop`.
        is_profiled: whether PyTorch's profiler says which operators take the time.
    """

    def __init__(self, runner: Any, is_profiled: bool) -> None:
        self._runner = runner
        self._seconds = 0.0
        self._profiler: Any = profile(activities=[ProfilerActivity.CPU]) if is_profiled else None
        for name in _METHODS:
            setattr(runner, name, self._timed(getattr(runner, name)))
        if self._profiler is not None:
            self._profiler.start()

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._seconds += time.perf_counter() - begin

        return timed

    def stop(self) -> dict[str, Any]:
        """Return the seconds of all steps, and by operator, without those that it calls."""
        for name in _METHODS:
            delattr(self._runner, name)
        operators = {}
        if self._profiler is not None:
            self._profiler.stop()
            operators = {
                event.key: event.self_cpu_time_total / 1e6
                for event in self._profiler.key_averages()
            }
        return {"seconds": self._seconds, "operators": operators}


def begin(worker: Any, is_profiled: bool) -> int:
    """Begin to watch a worker; return its number of threads."""
    worker.watch = Watch(worker.worker.model_runner, is_profiled)
    return torch.get_num_threads()


def end(worker: Any) -> dict[str, Any]:
    """Return what `Watch.stop` returns."""
    found: dict[str, Any] = worker.watch.stop()
    return found
