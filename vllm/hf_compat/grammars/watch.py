"""Grammars that are watched while they are followed.

How long xgrammar takes for a step can grow with the text, for an ambiguous grammar without bound
(``s ::= s s | "a"``); all requests of the engine wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from vllm.hf_compat.grammars.process import MOST_SECONDS_OF_A_STEP, TOO_SLOW
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

if TYPE_CHECKING:
    import torch

    from vllm.v1.request import Request

T = TypeVar("T")


class WatchedGrammar(StructuredOutputGrammar):
    """A grammar that takes no more tokens once a step has taken too long, so that its request ends.

    Args:
        grammar: is followed.

    Attributes:
        obstacle: what was wrong; None for nothing.
    """

    def __init__(self, grammar: StructuredOutputGrammar) -> None:
        self._grammar = grammar
        self.obstacle: str | None = None

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """As in ``StructuredOutputGrammar``; False also after a step that was too slow."""
        is_accepted = self._timed(lambda: self._grammar.accept_tokens(request_id, tokens))
        return is_accepted and self.obstacle is None

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """As in ``StructuredOutputGrammar``."""
        return self._timed(lambda: self._grammar.validate_tokens(tokens))

    def fill_bitmask(self, bitmask: torch.Tensor, idx: int) -> None:
        """As in ``StructuredOutputGrammar``."""
        self._timed(lambda: self._grammar.fill_bitmask(bitmask, idx))

    def rollback(self, num_tokens: int) -> None:
        """As in ``StructuredOutputGrammar``."""
        self._grammar.rollback(num_tokens)

    def is_terminated(self) -> bool:
        """As in ``StructuredOutputGrammar``."""
        return self._grammar.is_terminated()

    def reset(self) -> None:
        """As in ``StructuredOutputGrammar``."""
        self._grammar.reset()

    def _timed(self, follow: Callable[[], T]) -> T:
        begin = time.thread_time()  # of this thread alone: waiting for a core does not count
        result = follow()
        if time.thread_time() - begin > MOST_SECONDS_OF_A_STEP:
            self.obstacle = f"structured_outputs cannot be followed to the end: {TOO_SLOW}."
        return result


def obstacles(requests: Iterable[Request]) -> dict[str, str]:
    """Return why grammars were not compiled, or are not followed any more, by the requests' ids."""
    found = {}
    for request in requests:
        structured = request.structured_output_request
        grammar = structured._grammar if structured is not None else None
        if isinstance(grammar, Exception):
            found[request.request_id] = str(grammar)
        elif isinstance(grammar, WatchedGrammar) and grammar.obstacle is not None:
            found[request.request_id] = grammar.obstacle
    return found
