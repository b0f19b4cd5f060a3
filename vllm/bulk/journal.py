"""The log beside an output: every answer so far, so that nothing but a disk's end can lose one.

A file of lines, each with the CRC-32 of its bytes. The first holds the `Plan`; every other one an
answer, in the order in which they came. A line is written with one call, and so survives the end
of the process; what a power cut may lose is written through to the disk in groups (`sync`).
Where a line is damaged the file ends: that line and all after it are cut off when the log is
opened, and their rows are answered again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import zlib
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vllm.bulk.plan import Plan
from vllm.bulk.rows import Row
from vllm.bulk.tasks import Answer
from vllm.fork.sentence_command import UserError

FORMAT = 1

_TORN = re.compile(rb"[0-9a-f]{0,8}|[0-9a-f]{8} (p(l(a(n( .*)?)?)?)?)?")
"""What is there of a first line before its end is."""


class NotWrittenError(UserError):
    """The disk took no more; says so in a sentence. What was written before is kept."""


class Journal:
    """An open log, locked against a second run.

    Attributes:
        plan: what it was begun with.
        done: how many rows have an answer.
        errors: how many of these are errors.
        prompt_tokens: of all answers together.
        completion_tokens: of all answers together.

    Raises:
        ValueError: another run has it open, or it is no log of this format.
        NotWrittenError: the disk took no first line.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path = path
        self._file = _locked(path)
        self.done = self.errors = self.prompt_tokens = self.completion_tokens = 0
        self._end = 0
        found = self._read_plan()
        self.plan = found or plan
        self._offsets = array("q", [-1]) * self.plan.rows
        self._crcs = array("I", [0]) * self.plan.rows
        if found is not None:
            for answer, offset in self._read_answers():
                self._count(answer, offset)
        if found is None or (not self.done and self.plan != plan):
            self._begin(plan)  # of a run without answers nothing is lost
        else:
            self._truncate()

    def _begin(self, plan: Plan) -> None:
        self.plan, self._end = plan, 0
        self._offsets = array("q", [-1]) * plan.rows
        self._crcs = array("I", [0]) * plan.rows
        self._truncate()
        header = {"format": FORMAT, **plan.as_dict()}
        self._write(b"plan " + json.dumps(header).encode())
        self.sync()
        sync_folder(self._path.parent)

    def is_of(self, row: Row) -> bool:
        """Return whether there is an answer to a row, and it is that of its bytes."""
        return row.index < len(self._crcs) and self._crcs[row.index] == row.crc

    def has_more_errors_than(self, most: int | None) -> bool:
        """Return whether there are more rows with errors than these; None is any number."""
        return most is not None and self.errors > most

    def is_done(self, index: int) -> bool:
        """Return whether a row has its answer, or came into the input after the run began."""
        return index >= len(self._offsets) or self._offsets[index] >= 0

    def append(self, answer: Answer) -> None:
        """Write an answer down.

        Raises:
            NotWrittenError: the disk took no more.
        """
        fields = (
            answer.index,
            answer.crc,
            int(answer.is_error),
            answer.prompt_tokens,
            answer.completion_tokens,
        )
        offset = self._end
        self._write(" ".join(map(str, fields)).encode() + b" " + answer.line.encode())
        self._count(answer, offset)

    def sync(self) -> None:
        """Wait until all that was written survives a power cut.

        Raises:
            NotWrittenError: the disk failed.
        """
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise self._not_written(error) from error

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the output, with their ends, in the input's order; all rows are done.

        Raises:
            ValueError: a line is damaged that was not when the log was opened.
        """
        with open(self._file, "rb", closefd=False) as file:
            for index, offset in enumerate(self._offsets):
                file.seek(offset)
                record = _checked(file.readline())
                if record is None:
                    raise ValueError(
                        f"{self._path} was damaged since it was opened, at row {index}: start the "
                        "same command again, which answers what is missing."
                    )
                yield record.split(b" ", 5)[5] + b"\n"

    def remove(self) -> None:
        """Remove the log, whose answers stand elsewhere."""
        self._path.unlink()
        sync_folder(self._path.parent)

    def close(self) -> None:
        """Let others open the log."""
        os.close(self._file)

    def _count(self, answer: Answer, offset: int) -> None:
        if self._offsets[answer.index] >= 0:
            return
        self._offsets[answer.index] = offset
        self._crcs[answer.index] = answer.crc
        self.done += 1
        self.errors += answer.is_error
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens

    def _read_plan(self) -> Plan | None:
        with open(self._file, "rb", closefd=False) as file:
            record = _checked(file.readline())
        if record is None or not record.startswith(b"plan "):
            if os.fstat(self._file).st_size and not self._is_begun():
                raise ValueError(
                    f"{self._path} is no log of vllm bulk, or its first line is damaged: name "
                    "another output, or move it away."
                )
            return None
        header = json.loads(record[5:])
        if header.pop("format") != FORMAT:
            raise ValueError(
                f"{self._path} was written by another release: finish with that one, or name "
                "another output."
            )
        self._end = len(record) + 10
        return Plan.from_dict(header)

    def _is_begun(self) -> bool:
        """Return whether the file is a first line that was torn, or that never reached the disk."""
        start = os.pread(self._file, os.fstat(self._file).st_size, 0)
        return not start.strip(b"\0") or _TORN.fullmatch(start) is not None

    def _read_answers(self) -> Iterator[tuple[Answer, int]]:
        """Yield all answers with their places, up to the first damaged line."""
        with open(self._file, "rb", closefd=False) as file:
            file.seek(self._end)
            for line in file:
                answer = _answer_of(line, self.plan.rows)
                if answer is None:
                    return
                yield answer, self._end
                self._end += len(line)

    def _write(self, record: bytes) -> None:
        line = b"%08x %b\n" % (zlib.crc32(record), record)
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._file, line[written:], self._end + written)
        except OSError as error:
            with suppress(OSError):
                self._truncate()
            raise self._not_written(error) from error
        self._end += len(line)

    def _truncate(self) -> None:
        os.ftruncate(self._file, self._end)

    def _not_written(self, error: OSError) -> NotWrittenError:
        return NotWrittenError(
            f"{self._path} could not be written ({error.strerror}): {self.done} answers are kept."
        )


def _locked(path: Path) -> int:
    """Return a file's descriptor once this process alone has it.

    Raises:
        ValueError: another process has it.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # Not flock(), whose lock the engine's process would keep for a while after kill -9.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(file)
            raise ValueError(
                f"{path} belongs to a run that has not ended: wait for it, or name another output."
            ) from None
        # The run that had it may have removed it meanwhile.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)


def _checked(line: bytes) -> bytes | None:
    """Return a line without its sum and end; None if it is damaged."""
    if not line.endswith(b"\n") or line[8:9] != b" ":
        return None
    record = line[9:-1]
    return record if line[:8] == b"%08x" % zlib.crc32(record) else None


def _answer_of(line: bytes, rows: int) -> Answer | None:
    """Return the answer that a line holds without its text; None if it is damaged."""
    record = _checked(line)
    if record is None:
        return None
    index, crc, is_error, prompt_tokens, completion_tokens = map(int, record.split(b" ", 5)[:5])
    assert index < rows
    return Answer(index, bool(is_error), prompt_tokens, completion_tokens, "", crc)


def sync_folder(folder: Path) -> None:
    """Wait until names that were given or taken in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
