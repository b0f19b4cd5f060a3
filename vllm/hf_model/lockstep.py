"""Calls of one piece of code for several requests, which wait for each other where they share work.

Each call computes in the shapes that its request has alone. Where it comes to a matrix product it
stops until the others have come to one, and all that came to the same are multiplied at once. Calls
are greenlets: they share a thread, and with it PyTorch's threads and switches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

import torch
from greenlet import getcurrent, greenlet

Shared = Callable[..., torch.Tensor]
"""What is computed for several: of tensors [num_rows, ...] it returns one [num_rows, ...], whose
rows have the bits that each has alone."""


class Lockstep:
    """Runs calls."""

    def __init__(self) -> None:
        self._main: greenlet | None = None  # that runs them, while it does

    @property
    def is_running(self) -> bool:
        """Whether one of the calls is running now."""
        return self._main is not None and getcurrent() is not self._main

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return what each call returns. An error of one ends all.

        Args:
            calls: that come to `share`.
        """
        found: dict[int, Any] = {}
        before, self._main = self._main, getcurrent()
        try:
            running = [greenlet(_keeping(found, i, call)) for i, call in enumerate(calls)]
            for one in running:
                one.gr_context = copy_context()
            waiting = {i: one.switch() for i, one in enumerate(running)}
            while waiting := {i: at for i, at in waiting.items() if at is not None}:
                waiting = self._go_on(running, waiting)
        finally:
            self._main = before
        return [found[i] for i in range(len(calls))]

    def share(self, function: Shared, *rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of a call, computed with those of the others.

        Args:
            function: which of them come to the same is told by `==`.
            rows: [num_rows, ...] each.
        """
        main = self._main
        if main is None or getcurrent() is main:
            return function(*rows)
        computed: torch.Tensor = main.switch((function, rows))
        return computed

    @staticmethod
    def _go_on(running: list[greenlet], waiting: dict[int, Any]) -> dict[int, Any]:
        """Compute what calls wait for, and let them go on; return what they wait for next."""
        together: dict[Shared, list[int]] = {}
        for i, (function, _) in waiting.items():
            together.setdefault(function, []).append(i)
        ahead = {}
        for function, members in together.items():
            given = zip(*(waiting[i][1] for i in members), strict=True)
            rows = function(*(torch.cat(of_all) for of_all in given))
            counts = [len(waiting[i][1][0]) for i in members]
            for i, own in zip(members, rows.split(counts), strict=True):
                # PyTorch aligns what it computes; a row among others lies elsewhere.
                ahead[i] = running[i].switch(own.clone())
        return ahead


def _keeping(found: dict[int, Any], i: int, call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        found[i] = call()

    return run
