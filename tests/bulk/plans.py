"""Plans, rows and answers that need no engine."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

from vllm.bulk.journal import Journal
from vllm.bulk.output import journal_of, write_output
from vllm.bulk.plan import Plan
from vllm.bulk.rows import source_of
from vllm.bulk.runner import Runner
from vllm.bulk.tasks import Answer, Task, answer_to


def plan_of(rows: int) -> Plan:
    return Plan("ab" * 32, rows, "", {"model": "tiny"}, {"vllm": "1"})


def answer(index: int) -> Answer:
    """An answer whose bytes are those of its row."""
    rng = random.Random(index)
    text = "".join(rng.choices('abc \n"\\é\U0001f600', k=rng.randrange(40)))
    body = {"choices": [{"text": text}], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
    return answer_to(Task(index, str(index), "/v1/completions", b"{}"), 200, body)


def answer_file(source: Path, output: Path, delay_s: float) -> None:
    """Answer an input as ``vllm bulk`` does, by an engine that takes its time for each row."""

    async def ask(task: Task) -> Answer:
        await asyncio.sleep(random.uniform(0, delay_s))
        return replace(answer(task.index), crc=task.crc)

    rows = source_of(source)
    journal = Journal(journal_of(output), plan_of(rows.survey().rows))
    asyncio.run(Runner(ask, journal, concurrency=8).answer(rows.rows(journal.is_done)))
    write_output(output, journal)
    journal.close()
