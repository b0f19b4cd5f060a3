"""One measurement: its values, its failures, its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu.measurements import Log, Measurement, Outcome, run, sentence_of
from tests.benchmarks.gpu.conftest import wait_for


def outcome_of(measurement: Measurement, folder: Path) -> tuple[Outcome, str, str]:
    """Run a measurement; return its outcome, and all that it wrote."""
    log = Log.of(measurement.name, folder)
    outcome = run(measurement, log)
    return outcome, log.out.read_text(), log.err.read_text()


@pytest.mark.parametrize("way", ["values", "chatters", "floods"])
def test_values_are_the_last_object(
    measure: Callable[..., Measurement], way: str, tmp_path: Path
) -> None:
    outcome, out, _ = outcome_of(measure(way), tmp_path)
    assert (outcome.name, outcome.values, outcome.failure) == (way, {"all": 12.5}, None)
    assert len(out.splitlines()) == {"values": 2, "chatters": 4, "floods": 200_001}[way]


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("fails", "ValueError: this model has no shape."),
        ("silent", "it ended with status 3 and no message"),
        ("says_nothing", "it ended well, but printed no values"),
    ],
)
def test_a_failure_is_a_sentence(
    measure: Callable[..., Measurement], way: str, sentence: str, tmp_path: Path
) -> None:
    outcome, _, err = outcome_of(measure(way), tmp_path)
    assert (outcome.values, outcome.failure) == (None, sentence)
    assert ("Traceback" in err) == (way == "fails")


def test_what_crashed_has_said_what_it_had_measured(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    outcome, _, err = outcome_of(measure("crashes"), tmp_path)
    assert outcome.values == {"all": 12.5}
    assert outcome.failure == "it was ended by SIGSEGV; about to go"
    assert err == "about to go\n"


def test_what_takes_too_long_keeps_what_it_has_found(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    outcome, _, _ = outcome_of(measure("goes_on", limit=6), tmp_path)
    assert outcome.failure == "it was ended after 6 seconds"
    assert outcome.values is not None
    assert outcome.values["all"] >= 2


def test_what_takes_too_long_is_ended_with_its_processes(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    outcome, _, _ = outcome_of(measure("hangs", limit=3), tmp_path)
    assert (outcome.values, outcome.failure) == (None, "it was ended after 3 seconds")
    assert outcome.seconds < 20
    child = Path("/proc", (tmp_path / "ran").read_text(), "stat")
    wait_for(lambda: not child.exists() or child.read_text().split()[2] == "Z")


def test_the_cause_is_the_last_error_that_names_one() -> None:
    text = (
        "INFO starting\n(EngineCore pid=7) ERROR 11-22 [core.py:9] ValueError: no such head\n"
        "Traceback\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert sentence_of(text) == "ValueError: no such head"
    late = "torch.OutOfMemoryError: no room\nImportError: sys.meta_path is None, Python is likely\n"
    assert sentence_of(late) == "OutOfMemoryError: no room"
    assert sentence_of("first\n\nlast\n\n") == "last"
    assert sentence_of("") == ""
