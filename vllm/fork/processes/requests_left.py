"""A call of ``LLM`` that ends in an exception leaves no request behind.

Why: Requests that were added, and whose answers nobody fetches, would be computed by the next call,
  which returned them as its own.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/interrupted-generate.md).
Exit condition: Upstream aborts the requests of a call that raises.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.fork.processes.engine_death import end_waiting_with_engine


def leaving_nothing_behind(run: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of ``LLM`` that adds requests and fetches their answers: on an exception,
    Ctrl-C and the engine's death among them, all that it has added are aborted.
    """

    @wraps(run)
    def run_or_abort(llm: Any, *args: Any, **kwargs: Any) -> Any:
        engine = llm.llm_engine
        end_waiting_with_engine(engine.engine_core)
        states = engine.output_processor.request_states
        before = set(states)
        try:
            return run(llm, *args, **kwargs)
        except BaseException:
            if added := list(states.keys() - before):
                engine.abort_request(added, internal=True)
            raise

    return run_or_abort
