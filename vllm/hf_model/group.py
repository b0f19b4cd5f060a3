"""What a Transformers model computes at the moment, for layers that compute several requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from vllm.hf_layers.step_rows import Run
from vllm.hf_model.lockstep import Lockstep, Shared


class Group:
    """Several requests at once, or one alone, as it is at first.

    Attributes:
        has_rows: one token of each of several requests, [num_requests, 1, ...].
        prompts: first row and end of each of several prompts, [1, num_tokens, ...]; empty without.
    """

    def __init__(self) -> None:
        self.has_rows = False
        self.prompts: tuple[Run, ...] = ()
        self._lockstep = Lockstep()

    @property
    def is_active(self) -> bool:
        """Whether there are several requests."""
        return self.has_rows or bool(self.prompts)

    @contextmanager
    def of_rows(self) -> Iterator[None]:
        """Compute one token of each request."""
        with self._as(True, ()):
            yield

    @contextmanager
    def of_prompts(self, prompts: tuple[Run, ...]) -> Iterator[None]:
        """Compute prompts.

        Args:
            prompts: the rows of each, from 0 on.
        """
        with self._as(False, prompts):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Compute one of them by itself."""
        with self._as(False, ()):
            yield

    def each_alone(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return what calls of a layer for each row return; what they `share` is computed at once.

        Args:
            calls: one for each row.
        """
        if self._lockstep.is_running:
            return [call() for call in calls]
        return self._lockstep.run(calls)

    def share(self, function: Shared, *rows: torch.Tensor) -> torch.Tensor:
        """Return ``function(*rows)``, computed with the rows of others (`Lockstep.share`)."""
        return self._lockstep.share(function, *rows)

    @contextmanager
    def _as(self, has_rows: bool, prompts: tuple[Run, ...]) -> Iterator[None]:
        before = self.has_rows, self.prompts
        self.has_rows, self.prompts = has_rows, prompts
        try:
            yield
        finally:
            self.has_rows, self.prompts = before
