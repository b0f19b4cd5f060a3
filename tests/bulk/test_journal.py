"""Whatever happens to a log, its answers up to there are kept, and the others are asked again."""

from __future__ import annotations

import multiprocessing
import random
import resource
from pathlib import Path

import pytest

from tests.bulk.plans import answer, plan_of
from tests.sizes import size
from vllm.bulk.journal import Journal, NotWrittenError
from vllm.bulk.output import is_complete, journal_of, write_output
from vllm.bulk.rows import Row

ROWS = 12
ORDER = random.Random(0).sample(range(ROWS), ROWS)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output.jsonl"


def written(output: Path, indices: list[int]) -> bytes:
    """Write a log of these answers; return its bytes."""
    journal = Journal(journal_of(output), plan_of(ROWS))
    for index in indices:
        journal.append(answer(index))
    journal.close()
    return journal_of(output).read_bytes()


def finish(output: Path) -> list[int]:
    """Answer what a log lacks, and write the output; return what it had."""
    journal = Journal(journal_of(output), plan_of(ROWS))
    had = [index for index in range(ROWS) if journal.is_done(index)]
    for index in range(ROWS):
        if not journal.is_done(index):
            journal.append(answer(index))
    write_output(output, journal)
    journal.close()
    return had


def expected() -> bytes:
    return b"".join(answer(index).line.encode() + b"\n" for index in range(ROWS))


def test_a_log_torn_at_any_byte(output: Path) -> None:
    whole = written(output, ORDER)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in random.Random(2).sample(range(len(whole)), size(200, len(whole))):
        journal_of(output).write_bytes(whole[:length])
        had = finish(output)
        assert had == sorted(ORDER[: max(0, sum(end <= length for end in ends) - 1)])
        assert output.read_bytes() == expected()
        assert not journal_of(output).exists()


def test_a_log_damaged_at_any_byte(output: Path) -> None:
    """One bit is another: the answers before it are kept, and no other one is wrong."""
    whole = written(output, ORDER)
    first = whole.index(b"\n") + 1
    rng = random.Random(1)
    for place in rng.sample(range(first, len(whole)), size(300, len(whole) - first)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << rng.randrange(8)
        journal_of(output).write_bytes(spoilt)
        assert finish(output) == sorted(ORDER[: whole[:place].count(b"\n") - 1])
        assert output.read_bytes() == expected()


def test_an_end_of_zeros(output: Path) -> None:
    """As a file system leaves it whose power went away between a file's length and its bytes."""
    whole = written(output, ORDER[:5])
    journal_of(output).write_bytes(whole + bytes(5000))
    assert finish(output) == sorted(ORDER[:5])
    assert output.read_bytes() == expected()


def test_a_row_that_was_answered_twice_counts_once(output: Path) -> None:
    journal = Journal(journal_of(output), plan_of(ROWS))
    journal.append(answer(3))
    journal.append(answer(3))
    assert (journal.done, journal.completion_tokens) == (1, 3)
    journal.close()


def test_another_file_is_not_written_over(output: Path) -> None:
    for text in ("my notes\n", "my notes", "12345678 plan {}\n", "1234567"):
        journal_of(output).write_text(text)
        if text == "1234567":  # what is left of a first line
            Journal(journal_of(output), plan_of(ROWS)).close()
            continue
        with pytest.raises(
            ValueError, match=r"is no log of vllm bulk, or its first line is damaged"
        ):
            Journal(journal_of(output), plan_of(ROWS))
        assert journal_of(output).read_text() == text


def _open(output: Path, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        Journal(journal_of(output), plan_of(ROWS))
    except ValueError as error:
        answers.put(str(error))
    else:
        answers.put("opened")


def test_a_second_run_is_refused_and_a_later_one_is_not(output: Path) -> None:
    def told_to_another_process() -> str:
        process = context.Process(target=_open, args=(output, answers))
        process.start()
        process.join()
        return answers.get()

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    journal = Journal(journal_of(output), plan_of(ROWS))
    assert "belongs to a run that has not ended" in told_to_another_process()
    journal.close()
    assert told_to_another_process() == "opened"


@pytest.mark.parametrize("room", [0, 10, 700, 701, 1000])
def test_a_full_disk(output: Path, room: int) -> None:
    """What was written is kept, and the same run goes on once there is room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept: list[int] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(NotWrittenError, match=r"could not be written \(File too large\)"):
            write_all(output, kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(kept) < ROWS
    assert bool(kept) == (room >= 700)
    assert finish(output) == sorted(kept)
    assert output.read_bytes() == expected()
    assert sorted(one.name for one in output.parent.iterdir()) == [
        "output.jsonl",
        "output.jsonl.summary.json",
    ]


def write_all(output: Path, kept: list[int]) -> None:
    """Write answers until the disk is full, and append to `kept` which are written."""
    journal = Journal(journal_of(output), plan_of(ROWS))
    try:
        for index in ORDER:
            journal.append(answer(index))
            kept.append(index)
    finally:
        journal.close()


def test_a_run_without_answers_may_begin_otherwise(output: Path) -> None:
    Journal(journal_of(output), plan_of(3)).close()
    journal = Journal(journal_of(output), plan_of(ROWS))
    assert journal.plan == plan_of(ROWS)
    journal.append(answer(11))
    journal.close()
    again = Journal(journal_of(output), plan_of(3))
    assert again.plan == plan_of(ROWS)  # with an answer it stays what it was
    again.close()


@pytest.mark.parametrize("change", [b"", b"x"], ids=["emptied", "one byte more"])
def test_an_output_that_was_changed_is_not_complete(output: Path, change: bytes) -> None:
    finish(output)
    assert is_complete(output, plan_of(ROWS))
    output.write_bytes(output.read_bytes() + change if change else b"")
    with pytest.raises(ValueError, match="was changed since it was written: move it and"):
        is_complete(output, plan_of(ROWS))


def test_rows_that_came_later_have_no_answer(output: Path) -> None:
    """Whoever appends to an input while it is answered is told that it was changed."""
    journal = Journal(journal_of(output), plan_of(ROWS))
    assert not journal.is_of(Row(ROWS, {}))
    journal.close()
