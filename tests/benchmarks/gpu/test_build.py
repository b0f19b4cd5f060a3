"""The build on a GPU machine: failures, interruptions, full disks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import (
    build,
)
from tests.benchmarks.gpu.conftest import full_folder

FAILS = (
    "import sys; print('line of the compiler', flush=True); "
    "print('error: no such thing', file=sys.stderr); sys.exit(3)"
)


def build_that(
    environment: Path, monkeypatch: pytest.MonkeyPatch, code: str = "print('compiled')"
) -> None:
    """Let the build be one command."""
    build.PACK.mkdir(exist_ok=True)
    (build.PACK / "python.txt").write_text(".".join(map(str, sys.version_info[:2])))
    monkeypatch.setattr(build, "NEEDED", ())
    monkeypatch.setattr(build, "unpack_upstream", lambda: None)
    monkeypatch.setattr(
        build, "install_distribution", lambda _: build.run(sys.executable, "-c", code)
    )
    monkeypatch.setattr(sys, "argv", ["build.py", "--architecture", "90a-real"])


def test_a_build_that_fails_leaves_a_record_and_its_whole_log(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    build_that(environment, monkeypatch, FAILS)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    with pytest.raises(SystemExit, match=r"^error: `.*failed with status 3; its last lines"):
        build.main()
    record = json.loads((tmp_path / "out" / "build.json").read_text())
    assert "failed with status 3" in record["failure"]
    assert record["architecture"] == "90a-real"
    assert "distribution and kernels for 90a-real" in record["seconds"]
    log = (tmp_path / "out" / "build.log").read_text()
    for text in (log, capsys.readouterr().out):
        assert "line of the compiler\nerror: no such thing\n" in text


def test_what_was_built_is_not_built_again(
    environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless it failed, or something has changed."""
    build_that(environment, monkeypatch, FAILS)
    with pytest.raises(SystemExit):
        build.main()
    monkeypatch.setattr(build, "run", lambda *_: "")
    build.main()
    assert "  import\n" in capsys.readouterr().out
    build.main()
    assert capsys.readouterr().out == "build: nothing has changed since the last one.\n"
    monkeypatch.setattr(sys, "argv", ["build.py", "--architecture", "80-real"])
    build.main()
    assert "kernels for 80-real" in capsys.readouterr().out
    monkeypatch.setattr(build, "digest_of_sources", lambda: "another")
    build.main()
    assert "kernels for 80-real" in capsys.readouterr().out
    for broken in ("", "{}", "[]", "null"):
        (build.RESULTS / "build.json").write_text(broken)
        build.main()
        assert "kernels for 80-real" in capsys.readouterr().out


def test_a_build_that_is_interrupted_is_not_taken_for_one(
    environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build_that(environment, monkeypatch)
    monkeypatch.setattr(build, "run", lambda *_: "")
    build.main()
    really = build.make_environment

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["build.py", "--architecture", "80-real"])
    monkeypatch.setattr(build, "make_environment", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build.main()
    record = json.loads((build.RESULTS / "build.json").read_text())
    assert record["failure"] == "it was interrupted"
    monkeypatch.setattr(build, "make_environment", really)
    capsys.readouterr()
    build.main()
    assert "kernels for 80-real" in capsys.readouterr().out


def test_two_calls_at_once_are_refused(environment: Path) -> None:
    refused = pytest.raises(SystemExit, match="another call builds or measures here")
    with build.alone(), refused, build.alone():
        pass


def test_a_build_whose_copies_cannot_be_written_goes_on(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    build_that(environment, monkeypatch)
    monkeypatch.setattr(build, "run", lambda *_: "")
    monkeypatch.setenv("OUT", str(full_folder(tmp_path, "build.json", "build.log")))
    build.main()
    assert "has no copy of the results: [Errno 28] No space left" in capsys.readouterr().out
    assert json.loads((build.RESULTS / "build.json").read_text())["failure"] is None
