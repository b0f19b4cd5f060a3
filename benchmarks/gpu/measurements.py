"""Runs measurements one after the other, each in a process of its own, and keeps what they say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "gpu" / "results"
_ERROR = re.compile(r"\b\w+(?:Error|Exception): .*")
_NO_CAUSE = "Engine core initialization failed"

LEAST_SECONDS = 10.0
"""Left to a call of a stage, for a measurement to be started at all."""


@dataclass(frozen=True)
class Measurement:
    """A module that prints its values as one line of JSON, the last.

    Attributes:
        name: of the row in the table.
        module: what ``python -m`` runs.
        arguments: of it.
        timeout: seconds.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    timeout: float


@dataclass(frozen=True)
class Outcome:
    """What became of a measurement.

    Attributes:
        name: of the measurement.
        values: what it printed; None after a failure.
        failure: a sentence; None if there are values.
        seconds: that it took.
    """

    name: str
    values: dict[str, Any] | None
    failure: str | None
    seconds: float


def run(measurement: Measurement, timeout: float) -> Outcome:
    """Run a measurement for at most so many seconds; its processes end with it."""
    command = [sys.executable, "-m", measurement.module, *measurement.arguments]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = round(time.perf_counter() - start, 1)
        if status is None:
            failure = f"it was ended after {timeout:.0f} seconds"
        elif status:
            failure = sentence_of(read(err)) or f"it ended with status {status} and no message"
        else:
            values = json.loads(read(out).strip().splitlines()[-1])
            return Outcome(measurement.name, values, None, seconds)
        return Outcome(measurement.name, None, failure, seconds)


def read(file: TextIO) -> str:
    """Return all that was written to a file."""
    file.seek(0)
    return file.read()


def sentence_of(errors: str) -> str:
    """Return the error that a process ended with, from what it wrote; its last line, if no error.

    An engine's own process writes the cause, and the one that waits for it only that it failed.
    """
    causes = [found for found in _ERROR.findall(errors) if _NO_CAUSE not in found]
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return (causes or lines or [""])[-1]


class Results:
    """The outcomes of a stage, in a file.

    Args:
        file: where they are kept.
        machine: what they were measured on.
        out: a folder that gets a copy each time, or None.
    """

    def __init__(self, file: Path, machine: dict[str, object], out: Path | None = None) -> None:
        self._file = file
        self._out = out
        self._machine = machine
        kept = json.loads(file.read_text())["outcomes"] if file.exists() else []
        self._outcomes = {one["name"]: Outcome(**one) for one in kept}

    def of(self, name: str) -> Outcome | None:
        """Return what became of a measurement; None if it was not run."""
        return self._outcomes.get(name)

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome, in the place of an earlier one."""
        self._outcomes[outcome.name] = outcome
        outcomes = [asdict(one) for one in self._outcomes.values()]
        text = json.dumps({"machine": self._machine, "outcomes": outcomes}, indent=1) + "\n"
        for folder in (self._file.parent, self._out):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / self._file.name).write_text(text)


def run_missing(measurements: Iterable[Measurement], results: Results, seconds: float) -> None:
    """Run those that have no values yet, until the time is up.

    Args:
        measurements: in their order.
        results: gets the outcomes.
        seconds: for all of them.
    """
    end = time.monotonic() + seconds
    for measurement in measurements:
        known = results.of(measurement.name)
        left = end - time.monotonic()
        if (known is not None and known.values is not None) or left < LEAST_SECONDS:
            continue
        outcome = run(measurement, min(measurement.timeout, left))
        results.add(outcome)
        print(f"{outcome.seconds:>7.1f} s  {outcome.name}  {outcome.failure or ''}", flush=True)
