"""Answers rows side by side, as many as an engine has room for, until none are left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from vllm.bulk.journal import Journal, NotWrittenError
from vllm.bulk.rows import Row
from vllm.bulk.tasks import Answer, Task, answer_without_request, task_of

Ask = Callable[[Task], Awaitable[Answer]]

_SYNC_S = 1.0
"""What a power cut costs at most, in seconds of work."""


class Runner:
    """Answers the rows of one run.

    Args:
        ask: gets the answer of a server.
        journal: keeps the answers.
        concurrency: how many requests are under way at once.
        max_errors: how many errors there may be before it stops; None for any number.
        receipts: whether answers have receipts.
        on_answer: called with each answer once it is kept.
    """

    def __init__(
        self,
        ask: Ask,
        journal: Journal,
        *,
        concurrency: int,
        max_errors: int | None = None,
        receipts: bool = False,
        on_answer: Callable[[Answer], None] = lambda _: None,
    ) -> None:
        self._ask = ask
        self._journal = journal
        self._concurrency = concurrency
        self._max_errors = max_errors
        self._receipts = receipts
        self._on_answer = on_answer
        self._is_stopped = False

    def stop(self) -> None:
        """Take no more rows; what is under way is answered."""
        self._is_stopped = True

    @property
    def has_too_many_errors(self) -> bool:
        """Whether there are more errors than there may be."""
        return self._journal.has_more_errors_than(self._max_errors)

    async def answer(self, rows: Iterator[Row]) -> None:
        """Answer rows until there are none left, or it is stopped.

        Raises:
            NotWrittenError: the disk took no more.
            Exception: what `ask` raises; the answers so far are kept.
        """
        syncing = asyncio.create_task(self._sync_now_and_then())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._work(rows))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            syncing.cancel()
            with suppress(asyncio.CancelledError):
                await syncing
        self._journal.sync()

    async def _work(self, rows: Iterator[Row]) -> None:
        """Answer one row after the other."""
        while not self._is_stopped:
            row = next(rows, None)
            if row is None:
                return
            self._keep(await self._answer_one(row))

    async def _answer_one(self, row: Row) -> Answer:
        try:
            task = task_of(row, receipts=self._receipts)
        except ValueError as error:
            await asyncio.sleep(0)  # a million bad rows leave the loop its turn
            return answer_without_request(row, str(error))
        return await self._ask(task)

    def _keep(self, answer: Answer) -> None:
        self._journal.append(answer)
        self._on_answer(answer)
        if self.has_too_many_errors:
            self.stop()

    async def _sync_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_S)
            try:
                await asyncio.to_thread(self._journal.sync)
            except NotWrittenError:
                self.stop()
                raise
