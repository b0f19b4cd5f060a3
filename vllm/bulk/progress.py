"""What a terminal shows while rows are answered, and what is said at the end."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from tqdm.auto import tqdm

from vllm.bulk.journal import Journal
from vllm.bulk.tasks import Answer


class Progress:
    """A bar: rows done, tokens per second, time left. Quiet where there is no terminal.

    Args:
        journal: of the run; what it has at first counts as done, not as work.
    """

    def __init__(self, journal: Journal) -> None:
        self._tokens = 0
        self._begin = time.monotonic()
        self._bar = tqdm(
            total=journal.plan.rows, initial=journal.done, unit="row", disable=None, smoothing=0.05
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def __call__(self, answer: Answer) -> None:
        """Count an answer."""
        self._tokens += answer.completion_tokens
        seconds = time.monotonic() - self._begin
        self._bar.set_postfix_str(f"{self._tokens / seconds:.0f} tokens/s", refresh=False)
        self._bar.update()


def summary(journal: Journal, output: Path, answered: int, seconds: float) -> str:
    """Return what is said at the end of a run.

    Args:
        journal: with all answers.
        output: where they are.
        answered: how many rows this start answered.
        seconds: that it took.
    """
    before = journal.plan.rows - answered
    earlier = f", {before:,} of them at earlier starts" if before else ""
    return (
        f"{journal.plan.rows:,} rows answered{earlier}, {journal.errors:,} with an error; "
        f"{journal.prompt_tokens:,} tokens of prompts, {journal.completion_tokens:,} of answers; "
        f"{seconds:.0f} s. Written to {output}"
    )
