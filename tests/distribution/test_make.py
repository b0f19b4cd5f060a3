"""What the Makefile runs around pip: the plan, the checks, and the log."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distribution import memory, preflight, system_libraries
from distribution.errors import DistributionError
from distribution.memory import GIB, check_memory, compilers_at_once, total_memory
from distribution.release import describe_wheel
from tests.distribution.fake_repository import write_files, write_program
from tests.engines import ROOT
from tools.bare_machine import instructions, packages_of_readme, suite_of

pytestmark = pytest.mark.fast

OLD_PYTHON = "import sys; sys.version_info = (3, 10, 4); import runpy; "


# --- the list of targets -------------------------------------------------------------------------
def test_help_has_a_line_for_each_target() -> None:
    command = ["make", "--no-print-directory", "help"]  # it may be called by another make
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert all(one[0] == "make" and len(one) == 3 for one in lines)
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert sorted(one[1] for one in lines) == sorted({*phony.split()} - {"plan"})


# --- the plan ------------------------------------------------------------------------------------
def plan(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distribution.preflight", *arguments],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | variables,
    )  # fmt: skip


@pytest.mark.parametrize("goal", sorted(preflight.STEPS))
def test_the_plan_says_what_and_how_long(tmp_path: Path, goal: str) -> None:
    done = plan(str(tmp_path / "venv"), goal)
    assert done.returncode == 0, done.stderr
    title, *steps = done.stdout.splitlines()
    assert title == f"make {goal}"
    assert steps
    assert all(re.match(r"  \d\. .*\(.*\d+ minutes", step) for step in steps)
    assert ("installs this vLLM" in done.stdout) == (goal != "wheel")


def test_an_environment_that_is_there_is_brought_up_to_date(tmp_path: Path) -> None:
    write_files(tmp_path, {".installed": "", "bin/python": ""})
    assert f"1. brings {tmp_path} up to date" in plan(str(tmp_path), "demo").stdout


def test_an_old_python_is_refused_before_anything_of_it_is_used(tmp_path: Path) -> None:
    code = f"{OLD_PYTHON} sys.argv[1:] = ['{tmp_path}']; "
    code += "runpy.run_module('distribution.preflight', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"error: This is Python .*needs 3\.11, 3\.12 or 3\.13: .*\n", done.stderr)


def test_everything_that_the_machine_lacks_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = plan("/proc/nowhere", "demo", PATH=str(tmp_path / "bin"))
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("error: No C++ compiler was found for csrc/: install g++")
    assert second.startswith("error: Not enough disk space on the file system of /proc")
    assert not done.stdout


def test_a_python_without_its_venv_module_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert preflight.main(tmp_path / "venv", ["demo"]) == 1
    assert "apt install python3-venv" in capsys.readouterr().err


def test_a_missing_library_is_refused_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    system_libraries.check_system_libraries("cpu")
    monkeypatch.setattr(system_libraries, "NUMA", "libno-such.so.1")
    system_libraries.check_system_libraries("cuda")
    with pytest.raises(DistributionError, match=r"^libno-such\.so\.1 was .*: apt install libnuma1"):
        system_libraries.check_system_libraries("cpu")


def test_make_says_that_there_is_no_python(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "demo", "PYTHON=no-such-python", f"VENV={tmp_path}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.startswith("error: no-such-python was not found: install Python 3.11")


# --- memory --------------------------------------------------------------------------------------
def test_too_little_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_memory(total_memory())
    monkeypatch.setattr(memory, "total_memory", lambda: int(1.9 * GIB))
    with pytest.raises(DistributionError, match=r"^There are 1\.9 GiB of memory, and 4 GiB are"):
        check_memory(4 * GIB)
    monkeypatch.setattr(memory, "total_memory", lambda: int(3.8 * GIB))  # sold as 4
    check_memory(4 * GIB)


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({"memory.max": "1073741824\n"}, [GIB]),
        ({"memory.max": "max\n"}, []),
        ({"memory/memory.limit_in_bytes": "2147483648\n"}, [2 * GIB]),
        ({}, []),
    ],
)
def test_the_limit_of_a_container_counts(
    tmp_path: Path, files: dict[str, str], limits: list[int]
) -> None:
    write_files(tmp_path, files)
    assert list(memory._limits(tmp_path)) == limits


def test_as_many_compilers_run_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    for gib, expected in ((0.5, 1), (4, 4), (256, 64)):
        monkeypatch.setattr(memory, "total_memory", lambda gib=gib: int(gib * GIB))
        assert compilers_at_once() == expected


# --- the log -------------------------------------------------------------------------------------
def quietly(log: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distribution.quiet", str(log), "Working", "--", "sh", "-c", script],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip


def test_output_goes_to_the_log_and_notes_to_the_user(tmp_path: Path) -> None:
    log = tmp_path / "new" / "log"
    done = quietly(log, "echo one; echo two >&2; echo vllm: note: three; echo note: pip")
    assert done.returncode == 0
    assert log.read_text() == "one\ntwo\nvllm: note: three\nnote: pip\n"
    first, note, last = done.stdout.splitlines()
    assert first == f"Working (its output goes to {log})"
    assert note == "vllm: note: three"
    assert last == "  done in 0:00"


def test_a_failure_is_this_projects_sentence(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "echo noise; echo '  error: do this instead'; echo error: metadata-failed; exit 7"
    done = quietly(log, script)
    assert done.returncode == 7
    assert done.stderr == f"error: do this instead\nThe whole output is in {log}.\n"


def test_another_failure_is_the_end_of_the_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = quietly(log, "seq 100; exit 3")
    assert done.returncode == 3
    shown = [str(number) for number in range(71, 101)]
    assert done.stderr.splitlines() == [*shown, f"The whole output is in {log}."]


def test_a_command_that_is_killed_is_said_to_be(tmp_path: Path) -> None:
    done = quietly(tmp_path / "log", "kill -9 $$")
    assert done.returncode == 137
    assert done.stderr.startswith("error: it was ended by SIGKILL.\n")


def test_any_bytes_and_any_locale_will_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distribution.quiet", str(tmp_path / "log"), "Working", "--",
         "printf", "vllm: note: \\342\\224\\201 \\377\\n"],
        cwd=ROOT, capture_output=True,
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_bytes() == "vllm: note: \u2501 \ufffd\n".encode()


def test_a_terminal_shows_where_it_is_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "distribution.quiet", str(tmp_path / "log"), "Working", "--",
               "sh", "-c", "echo one; echo two"]  # fmt: skip
    main, terminal = pty.openpty()
    subprocess.run(command, cwd=ROOT, stdout=terminal, check=True)
    os.close(terminal)
    said = os.read(main, 10_000).decode()
    assert "\r\x1b[K  0:00  one\r\x1b[K  0:00  two\r\x1b[K" in said


# --- the wheel -----------------------------------------------------------------------------------
def test_there_must_be_one_wheel_to_describe(tmp_path: Path) -> None:
    for names in ((), ("vllm-1-py3-none-any.whl", "vllm-2-py3-none-any.whl")):
        for name in names:
            (tmp_path / name).touch()
        with pytest.raises(DistributionError, match=f"holds {len(names)} wheels"):
            describe_wheel(tmp_path)


def test_a_wheel_for_gpus_needs_no_other_index(tmp_path: Path) -> None:
    for label, needs_index in (("cpu.hf1", True), ("hf1", False)):
        folder = tmp_path / label
        folder.mkdir()
        (folder / f"vllm-0.32.0+{label}-cp311-abi3-linux_x86_64.whl").touch()
        assert ("--index-url" in describe_wheel(folder)) == needs_index


# --- the machine with nothing --------------------------------------------------------------------
def test_the_readme_names_the_packages() -> None:
    assert {"make", "g++", "libnuma1", "python3-dev", "python3-venv"} <= set(packages_of_readme())


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_images_install_what_the_readme_names_and_what_is_checked(name: str) -> None:
    steps = list(instructions(ROOT / "docker" / name))
    (installs,) = (rest for word, rest in steps if word == "RUN" and "apt-get install" in rest)
    assert set(packages_of_readme()) - {"git"} <= set(installs.split())
    assert ("ENTRYPOINT", '["vllm", "serve"]') in steps
    if name == "Dockerfile":
        assert suite_of(ROOT / "docker" / name) == "trixie"
    else:
        assert ("ENV", "VLLM_TARGET_DEVICE=cuda") in steps
        assert "Nobody has built or run this image yet" in (ROOT / "docker" / name).read_text()


def test_instructions_are_read_over_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("# comment\nFROM debian:trixie-slim\n\nRUN one \\\n    && two\nENV A=b c\n")
    assert list(instructions(file)) == [
        ("FROM", "debian:trixie-slim"), ("RUN", "one  && two"), ("ENV", "A=b c"),
    ]  # fmt: skip


@pytest.mark.parametrize("compiler", ["true", "false"])
def test_a_compiler_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    from distribution.cxx import check_cxx

    real = shutil.which(compiler)
    write_program(tmp_path, "g++", f'exec {real} "$@"')
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if compiler == "true":
        check_cxx()
        return
    with pytest.raises(DistributionError, match=r"^The C\+\+ compiler g\+\+ does not .* GCC 11"):
        check_cxx()
