"""A measurement: a module run in a process of its own, and what became of it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_ERROR = re.compile(r"\b\w+(?:Error|Exception): .*")

_NO_CAUSES = (
    "Engine core initialization failed",
    "the server ended with status",
    "sys.meta_path is None",
    "Python is likely shutting down",
)
"""In errors that follow from others, which tell the cause."""

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>

_SEARCHED_BYTES = 4 << 20
"""Of the end of what a measurement printed, for its values."""


@dataclass(frozen=True)
class Measurement:
    """A module that prints its values as a line of JSON, an object.

    It may print them again and again as it goes on, and other lines between them and after them:
    the last object counts. So a measurement that is cut short leaves what it had measured.

    Attributes:
        name: of the row in the table.
        module: what ``python -m`` runs.
        arguments: of it.
        expected: seconds that it is thought to take on an H100.
        limit: seconds after which it is ended.
        needs: name of a measurement without whose values it cannot run.
        environment: variables of its process.
        makes: a folder that it makes for others; without it, it has to run again.
        unless: name of a measurement that it explains, if that has not ended well.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    expected: float
    limit: float
    needs: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    makes: Path | None = None
    unless: str | None = None

    @property
    def key(self) -> str:
        """What is run: an outcome of anything else is no outcome of this measurement."""
        variables = (f"{name}={value}" for name, value in self.environment.items())
        return " ".join([*variables, self.module, *self.arguments])


@dataclass(frozen=True)
class Outcome:
    """What became of a measurement.

    Attributes:
        name: of the measurement.
        values: the last that it printed; None if it printed none.
        failure: a sentence; None if it ended well. With values as well, they may be a part.
        seconds: that it took.
        date: when it ended, as ISO 8601 has it, UTC.
        key: of what was run.
        sources: digest of what was built.
    """

    name: str
    values: dict[str, Any] | None
    failure: str | None
    seconds: float
    date: str
    key: str = ""
    sources: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it ended well, with all results as they have to be."""
        values = self.values or {}
        is_equal = values.get("equal") == values.get("of") and not values.get("errors")
        return self.failure is None and is_equal


@dataclass(frozen=True)
class Log:
    """Files with all that a measurement wrote.

    Attributes:
        out: its standard output.
        err: its standard error.
    """

    out: Path
    err: Path

    @staticmethod
    def of(name: str, folder: Path) -> Log:
        """Return the files of a measurement of a name."""
        stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        return Log(folder / f"{stem}.out", folder / f"{stem}.err")


def run(measurement: Measurement, log: Log) -> Outcome:
    """Run a measurement until its limit; its processes end with it.

    Whatever it does, there is an outcome, and its output is in the log.
    """
    command = [sys.executable, "-m", measurement.module, *measurement.arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | dict(measurement.environment)
    start = time.perf_counter()
    with log.out.open("w") as out, log.err.open("w") as err:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
            start_new_session=True, preexec_fn=_end_with_parent,
        )  # fmt: skip
        try:
            status = process.wait(measurement.limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = round(time.perf_counter() - start, 1)
    values = last_values(ends_of(log.out, _SEARCHED_BYTES))
    failure = failure_of(status, measurement.limit, ends_of(log.err, _SEARCHED_BYTES))
    if failure is None and values is None:
        failure = "it ended well, but printed no values"
    date = datetime.now(UTC).isoformat("T", "seconds")
    return Outcome(measurement.name, values, failure, seconds, date, measurement.key)


def _end_with_parent() -> None:
    """Let the kernel end a new process with the one that started it, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def last_values(text: str) -> dict[str, Any] | None:
    """Return the last line that is an object of JSON; None if there is none."""
    for line in reversed(text.splitlines()):
        if not line.startswith("{"):
            continue
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return None


def failure_of(status: int | None, limit: float, errors: str) -> str | None:
    """Return a sentence for the end of a process; None if it ended well.

    Args:
        status: it ended with; None if it was ended.
        limit: seconds that it had.
        errors: what it wrote to standard error.
    """
    if status == 0:
        return None
    if status is None:
        return f"it was ended after {limit:.0f} seconds"
    if status < 0:
        name = signal.Signals(-status).name
        return f"it was ended by {name}; {sentence_of(errors) or 'there is no message'}"
    return sentence_of(errors) or f"it ended with status {status} and no message"


def sentence_of(errors: str) -> str:
    """Return the error that a process ended with, from what it wrote; its last line, if no error.

    An engine's own process writes the cause, and the one that waits for it only that it failed.
    """
    found = _ERROR.findall(errors)
    causes = [one for one in found if not any(part in one for part in _NO_CAUSES)]
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return (causes or found or lines or [""])[-1]


def ends_of(file: Path, size: int) -> str:
    """Return at most so many bytes of a file's end, as text; "" if there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - size))
            return opened.read().decode(errors="replace")
    except OSError:
        return ""
