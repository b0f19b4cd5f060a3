"""What stops a run, and what is kept then."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bulk.plans import answer, plan_of
from vllm.bulk import cli
from vllm.bulk.journal import Journal, NotWrittenError
from vllm.bulk.output import journal_of
from vllm.bulk.rows import Row, source_of
from vllm.bulk.runner import Runner
from vllm.bulk.server import EngineEndedError, acknowledged, interrupts_held_back
from vllm.bulk.tasks import Answer, Task, answer_without_request
from vllm.utils.argparse_utils import FlexibleArgumentParser

ROWS = 100


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "log", plan_of(ROWS))
    yield journal
    journal.close()


def rows(bad: int = 0) -> Iterator[Row]:
    """All rows, of which the first ones have a problem."""
    for i in range(ROWS):
        yield Row(i, problem="It is bad.") if i < bad else Row(i, {"prompt": "a"})


def run(
    journal: Journal, ask: Callable[[Task], Awaitable[Answer]], bad: int = 0, **given: Any
) -> None:
    asyncio.run(Runner(ask, journal, concurrency=4, **given).answer(rows(bad)))


async def at_once(task: Task) -> Answer:
    await asyncio.sleep(0)
    return answer(task.index)


def test_errors_are_answers_unless_there_are_too_many(journal: Journal) -> None:
    run(journal, at_once, bad=10, max_errors=5)
    assert 6 <= journal.errors <= 9  # others were under way
    assert journal.done < ROWS
    run(journal, at_once, bad=10, max_errors=10)
    assert (journal.done, journal.errors) == (ROWS, 10)


def test_too_many_errors_in_the_last_rows(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The status says so, whether or not rows were left when they were counted."""

    async def answer_all(*_: Any) -> None:
        for i in range(ROWS):
            journal.append(
                answer(i) if i < ROWS - 1 else answer_without_request(Row(i), "It is bad.")
            )

    monkeypatch.setattr(cli, "_answer", answer_all)
    source = tmp_path / "input.jsonl"
    source.touch()
    args = argparse.Namespace(output=tmp_path / "output", max_errors=0)
    assert cli._go_on(args, args, journal.plan, journal, source_of(source)) == 1
    assert "1 errors are more than --max-errors=0" in capsys.readouterr().err
    assert not args.output.exists()


def test_an_engine_that_ends_keeps_what_was_answered(journal: Journal) -> None:
    async def ask(task: Task) -> Answer:
        if task.index == 50:
            raise EngineEndedError("It is gone.")
        return await at_once(task)

    with pytest.raises(EngineEndedError, match="It is gone"):
        run(journal, ask)
    assert 46 <= journal.done <= 53
    assert not journal.is_done(50)


def test_it_stops_once_what_is_under_way_is_answered(journal: Journal) -> None:
    started = []

    async def ask(task: Task) -> Answer:
        started.append(task.index)
        if len(started) == 10:
            runner.stop()
        await asyncio.sleep(0.001)
        return answer(task.index)

    runner = Runner(ask, journal, concurrency=4)
    asyncio.run(runner.answer(rows()))
    assert journal.done == len(started) < 20


def test_a_disk_that_fails_stops_it(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(NotWrittenError, match=r"Input/output error.*100 answers are kept"):
        run(journal, at_once)


def test_answers_know_the_bytes_of_their_rows(tmp_path: Path) -> None:
    """An input that is changed while it is answered, and changed back, is noticed."""
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    first = "".join(f'{{"prompt": "a{i:01000}"}}\n' for i in range(ROWS))
    file.write_text(first)
    source = source_of(file)
    plan = replace(plan_of(ROWS), input_sha256=source.survey().sha256)
    journal = Journal(journal_of(output), plan)

    async def ask(task: Task) -> Answer:
        if task.index == 20:
            file.write_text(first.replace("a", "b"))
        await asyncio.sleep(0)
        return replace(answer(task.index), crc=task.crc)

    args = argparse.Namespace(input=file, output=output)
    asyncio.run(Runner(ask, journal, concurrency=4).answer(source.rows(journal.is_done)))
    file.write_text(first)
    assert journal.done == ROWS
    same = sum(journal.is_of(row) for row in source.rows(lambda _: False))
    assert 0 < same < ROWS
    with pytest.raises(ValueError, match=rf"{same} of {ROWS} rows are as they were.: remove"):
        cli._check_input(args, journal, source)
    file.write_text(first.replace("a", "c"))
    with pytest.raises(ValueError, match=rf"0 of {ROWS} rows are as they were.: remove"):
        cli._check_input(args, journal, source)
    journal.close()


def test_ctrl_c_is_acknowledged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, while the main thread is busy with the start of an engine, and then acts on it."""
    heard: list[int] = []
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with acknowledged("Stopping soon."), interrupts_held_back():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 10
            while "\n" not in err.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert err.getvalue() == "Stopping soon.\n"
        with acknowledged("Nobody has pressed it."):
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard
    assert err.getvalue() == "Stopping soon.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none.jsonl", "out.jsonl"], "There is no input none.jsonl"),
        (["in.jsonl", "none/out.jsonl"], "There is no folder none: make it first."),
        (["in.jsonl", "folder"], "folder is a folder: name another output."),
        (["in.jsonl", "a" * 240], "is too long for the names beside it"),
        (["in.jsonl", "model/out.jsonl"], "would be a file of model: name an output outside"),
        (["in.jsonl", "loop"], "loop"),
        (["out.jsonl.summary.json", "out.jsonl"], "is the input: name another output."),
        (["in.jsonl", "notes.txt"], "notes.txt exists, and vllm bulk has not written it"),
        (["in.jsonl", "in.jsonl"], "in.jsonl is the input: name another output."),
        (["in.jsonl", "link.jsonl"], "link.jsonl is the input: name another output."),
        (["in.jsonl", "out.jsonl", "--concurrency", "0"], "--concurrency=0 is less than 1."),
        (["in.jsonl", "out.jsonl", "--max-errors", "-1"], "--max-errors=-1 is less than 0."),
        (["in.jsonl", "out.jsonl", "--chat-template", "none"], "appears path-like"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"prompt": "a"}\n')
    Path("notes.txt").write_text("mine\n")
    Path("link.jsonl").hardlink_to("in.jsonl")
    Path("out.jsonl.summary.json").write_text("{}")
    Path("loop").symlink_to("loop")
    for name in ("folder", "model"):
        Path(name).mkdir()
    parser = FlexibleArgumentParser()
    command = cli.BulkCommand()
    command.subparser_init(parser.add_subparsers())
    with pytest.raises(SystemExit, match="1"):
        command.cmd(parser.parse_args(["bulk", *words, "--model", "model"]))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vllm bulk: ")
    assert sentence in line
    assert not Path("out.jsonl").exists()
    assert Path("notes.txt").read_text() == "mine\n"


def test_a_model_has_to_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    parser = FlexibleArgumentParser()
    command = cli.BulkCommand()
    command.subparser_init(parser.add_subparsers())
    with pytest.raises(SystemExit, match="1"):
        command.cmd(parser.parse_args(["bulk", str(tmp_path / "in.jsonl"), str(tmp_path / "out")]))
    assert capsys.readouterr().err == "vllm bulk: name the model: --model MODEL.\n"
