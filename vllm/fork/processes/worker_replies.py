"""What workers have replied to a call that failed is taken before the next one is made.

Why: Upstream's executor of several workers reads their replies in order, and stops at the first
  error. The replies of those behind it stay, and the next call takes them for its own.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/worker-replies-after-error.md).
Exit condition: Upstream reads the replies of all workers before it raises.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore


def taking_all_replies(call: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of ``EngineCore`` that calls workers, which may raise."""

    @wraps(call)
    def call_and_take(core: EngineCore, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(core, *args, **kwargs)
        except Exception:
            _take_all(core.model_executor)
            raise

    return call_and_take


def _take_all(executor: Any) -> None:
    """Ask the workers for a word that nobody else says, and drop what comes before it."""
    if not isinstance(executor, MultiprocExecutor) or executor.is_failed:
        return
    word = uuid4().hex
    assert executor.rpc_broadcast_mq is not None
    executor.rpc_broadcast_mq.enqueue((pickle.dumps(_say), (word,), {}, None))
    for replies in executor.response_mqs:
        while not _is(word, replies.dequeue()[1]):
            pass


def _say(worker: Any, word: str) -> str:
    return word


def _is(word: str, reply: Any) -> bool:
    return isinstance(reply, str) and reply == word
