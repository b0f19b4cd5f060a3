"""How long each test file takes: a run keeps it in build/test-durations.txt, the longest first.

What a run leaves out keeps the duration that it had. Fixtures count for the file that first needed
them. Files that take long begin first, in the order of tests/durations.txt, a copy of that file.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "build" / "test-durations.txt"
KNOWN = Path(__file__).with_name("durations.txt")


class Durations:
    """A plugin of the process that a run was started as.

    Args:
        file: where durations are kept.
    """

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's preparation, its call and its end."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write them down."""
        kept = {**read_durations(self._file), **self._seconds}
        longest_first = sorted(kept.items(), key=lambda one: -one[1])
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(f"{value:8.1f} s  {name}\n" for name, value in longest_first))


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by what `KNOWN` has for their files, in place, so that no process of several is
    alone with a long one at the end.
    """
    known = read_durations(KNOWN)
    items.sort(key=lambda item: -known.get(item.nodeid.partition("::")[0], 0.0))


def read_durations(file: Path) -> dict[str, float]:
    """Return the seconds of each test file; nothing before the first run."""
    if not file.exists():
        return {}
    rows = [line.split() for line in file.read_text().splitlines()]
    return {name: float(seconds) for seconds, _, name in rows}
