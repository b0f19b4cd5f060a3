"""The outcomes of measurements on one machine, in files that nothing else spoils."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.gpu.measurements import ROOT, Log, Outcome, ends_of

FOLDER = ROOT / "build" / "gpu" / "results"

LOG_BYTES = 100_000
"""Of the end of each of the two outputs of a measurement, in the log that travels back."""


class Results:
    """The outcomes on one machine, kept after each measurement.

    Args:
        machine: what was measured on; its "device" is in the files' names, since numbers of two
            GPUs do not belong together.
        folder: where they are kept, and all that the measurements wrote.
        out: a folder that gets a copy each time, or None. Where that cannot be written, a line says
            so, and nothing else happens.
        sources: digest of what is measured now.
    """

    def __init__(
        self,
        machine: dict[str, object],
        folder: Path = FOLDER,
        out: Path | None = None,
        sources: str = "",
    ) -> None:
        self.sources = sources
        self._machine = machine
        self._folder = folder
        self._out = out
        self._stem = "measured-" + re.sub(r"[^a-z0-9]+", "-", str(machine["device"]).lower())
        folder.mkdir(parents=True, exist_ok=True)
        self._outcomes = {one.name: one for one in self._kept()}

    def _kept(self) -> Iterator[Outcome]:
        file = self._folder / f"{self._stem}.json"
        if not file.exists():
            return
        try:
            yield from [Outcome(**one) for one in json.loads(file.read_text())["outcomes"]]
        except (ValueError, TypeError, KeyError):
            file.rename(file.with_suffix(".broken"))
            print(f"note: {file} is no record of measurements; it is {file.stem}.broken now.")

    def of(self, name: str) -> Outcome | None:
        """Return what became of a measurement; None if it was not run."""
        return self._outcomes.get(name)

    def log(self, name: str) -> Log:
        """Return the files for all that a measurement writes."""
        return Log.of(name, self._folder)

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome, in the place of an earlier one."""
        self._outcomes[outcome.name] = replace(outcome, sources=self.sources)
        outcomes = [asdict(one) for one in self._outcomes.values()]
        text = json.dumps({"machine": self._machine, "outcomes": outcomes}, indent=1) + "\n"
        self.keep(f"{self._stem}.json", text)
        self.keep(f"{self._stem}.log", "".join(map(self._log_of, self._outcomes)))

    def _log_of(self, name: str) -> str:
        log, outcome = self.log(name), self._outcomes[name]
        title = f"{name}: {outcome.failure or 'ended well'}, {outcome.seconds} s, {outcome.date}"
        parts = (("standard output", log.out), ("standard error", log.err))
        texts = [f"--- {what}\n{ends_of(file, LOG_BYTES).rstrip()}\n" for what, file in parts]
        return f"=== {title}\n{''.join(texts)}\n"

    def keep(self, name: str, text: str) -> None:
        """Write a file, as a whole or not at all, and a copy for what travels back."""
        try:
            replaced = self._folder / f"{name}.new"
            replaced.write_text(text)
            os.replace(replaced, self._folder / name)
        except OSError as error:
            print(f"note: {self._folder / name} is not written: {error}", flush=True)
        if self._out is not None:
            copy_to(self._out, name, text)


def copy_to(folder: Path, name: str, text: str) -> None:
    """Write a file that is a copy; a line says so if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    except OSError as error:
        with contextlib.suppress(OSError):
            print(f"note: {folder / name} is not written: {error}", flush=True)
