"""Carrying the series to another release: what merges, what conflicts, and what is written."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from distribution.errors import DistributionError
from distribution.patches import main
from distribution.pristine import build_folder, unpack_text
from distribution.rebase import wheel_of_release
from distribution.series import Patch, load_series, parse_patch, patched_files
from tests.distribution.fake_repository import (
    contents,
    make_patch,
    make_repository,
    write_series,
    write_wheel,
)
from tests.engines import ROOT

NEXT = "1.3.0"
A, B = "vllm/a.py", "vllm/b.py"
OLD = {A: "".join(f"line {i}\n" for i in range(1, 21)), B: "b1\nb2\n"}
PATCH_A = make_patch("hooks/a.patch", {A: {5: ["five"], 15: ["fifteen", "sixteen"]}}, OLD)
PATCH_B = make_patch("hooks/b.patch", {B: {1: ["between"]}}, OLD)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A repository pinned to the old release, with a patch of each of its two files."""
    return make_repository(tmp_path / "old", OLD, {}, [PATCH_A, PATCH_B])


def carry(
    root: Path, new: Mapping[str, str], capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, list[str]]:
    """Rebase to a release that holds `new`; return the exit status and what was printed."""
    wheel = root / "next.whl" / f"upstream-{NEXT}-py3-none-any.whl"
    write_wheel(wheel, new)
    command = ["rebase", "--to", NEXT, "--target", "cpu", "--wheel", str(wheel), *arguments]
    status = main(command, root)
    return status, capsys.readouterr().out.splitlines()


def rebased(root: Path) -> Path:
    return build_folder("cpu", root) / f"rebased-{NEXT}"


# --- a small release -----------------------------------------------------------------------------
def test_moved_lines_are_followed(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = {A: "first\nsecond\n" + OLD[A].replace("line 10\n", ""), B: OLD[B]}
    status, said = carry(old, new, capsys)
    assert status == 0
    assert said[:-1] == [
        "hooks/a.patch", f"  {A}:5 -> 7", f"  {A}:15 -> 16", "hooks/b.patch", f"  {B}:1 -> 1"
    ]  # fmt: skip
    assert said[-1] == f"3 of 3 hunks apply to 1.3.0; written to {rebased(old)}"
    moved = make_patch(PATCH_A.name, {A: {7: ["five"], 16: ["fifteen", "sixteen"]}}, new)
    assert load_series(rebased(old)) == [moved, PATCH_B]


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ({B: OLD[B]}, "the release has no such file"),
        (
            {A: OLD[A].replace("line 5\n", "line five\n").replace("line 6\n", ""), B: OLD[B]},
            "upstream changed the lines around it",
        ),
        (
            {A: OLD[A].replace("line 5\n", "line 5\nfive\n"), B: OLD[B]},
            "upstream has the same lines already",
        ),
    ],
    ids=["file removed", "lines changed", "same lines"],
)
def test_a_conflict_is_named_and_the_rest_carried(
    old: Path, capsys: pytest.CaptureFixture[str], new: dict[str, str], reason: str
) -> None:
    status, said = carry(old, new, capsys)
    assert status == 1
    assert f"  {A}:5 CONFLICT: {reason}" in said
    assert f"  {B}:1 -> 1" in said
    reject = parse_patch("reject", (rebased(old) / f"{PATCH_A.name}.rej").read_text())
    assert reject.header == PATCH_A.header
    assert reject.files[A][0] == PATCH_A.files[A][0]  # as it was, for the old release
    assert not (rebased(old) / f"{PATCH_B.name}.rej").exists()
    assert load_series(rebased(old))[-1] == PATCH_B
    assert "five" not in str([patch.files for patch in load_series(rebased(old))])


def test_a_patch_of_which_nothing_applies_leaves_the_series(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carry(old, {B: OLD[B]}, capsys)
    assert sorted(contents(rebased(old))) == ["hooks/a.patch.rej", "hooks/b.patch", "series"]
    assert load_series(rebased(old)) == [PATCH_B]


def test_a_second_attempt_leaves_nothing_of_the_first(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carry(old, {A: OLD[A]}, capsys)
    assert (rebased(old) / "hooks/b.patch.rej").exists()
    write_series(old, [PATCH_A])
    assert carry(old, {A: OLD[A]}, capsys)[0] == 0
    assert sorted(contents(rebased(old))) == ["hooks/a.patch", "series"]


def test_write_replaces_the_patches_once_all_apply(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(old / "patches")
    assert carry(old, {B: OLD[B]}, capsys, "--write")[0] == 1
    assert contents(old / "patches") == before


def test_write_replaces_the_patches(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = carry(old, {**OLD, B: "b0\n" + OLD[B]}, capsys, "--write")
    assert status == 0
    assert said[-1].endswith(f"written to {old / 'patches'}")
    moved = make_patch(PATCH_B.name, {B: {2: ["between"]}}, {B: "b0\nb1\nb2\n"})
    assert load_series(old / "patches") == [PATCH_A, moved]


# --- refusals ------------------------------------------------------------------------------------
def test_a_series_that_does_not_apply_to_its_own_release_is_named(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_series(old, [make_patch("x.patch", {A: {1: ["x"]}}, {A: "other\n"})])
    command = ["rebase", "--to", NEXT, "--target", "cpu", "--wheel", str(old / "absent.whl")]
    assert main(command, old) == 1
    assert capsys.readouterr().err.startswith(f"error: x.patch does not apply to {A}")


def test_a_wheel_that_is_not_there_is_named(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rebase", "--to", NEXT, "--target", "cpu", "--wheel", str(old / "absent.whl")]
    assert main(command, old) == 1
    error = capsys.readouterr().err
    assert error == f"error: --wheel names {old / 'absent.whl'}, which does not exist.\n"


def test_a_release_that_pip_cannot_download_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DistributionError, match=r"pip could not download vllm 9\.9\.9"):
        wheel_of_release("vllm", "9.9.9", tmp_path / "wheels")
    assert not list((tmp_path / "wheels").iterdir())


# --- the next real release -----------------------------------------------------------------------
RELEASE = "0.33.0"
CONFLICTS = [
    ("hooks/hf-compat-requests.patch", "vllm/entrypoints/launchers/run_batch.py", 825),
    ("hooks/hf-compat-requests.patch", "vllm/entrypoints/llm.py", 35),
    ("hooks/hf-compat-answers.patch", "vllm/v1/engine/__init__.py", 241),
    ("upstream-fixes/cpu-resources.patch", "vllm/v1/worker/cpu_worker.py", 77),
    ("upstream-fixes/cpu-resources.patch", "vllm/v1/worker/cpu_worker.py", 236),
    ("upstream-fixes/lora-without-adapter-cpu.patch", "vllm/lora/ops/torch_ops/lora_ops.py", 35),
    ("upstream-fixes/lora-without-adapter-cpu.patch", "vllm/lora/ops/torch_ops/lora_ops.py", 123),
    ("upstream-fixes/processes.patch", "vllm/entrypoints/launchers/launcher.py", 21),
]


class Rebased:
    """What the command printed and wrote for the release after the pinned one."""

    def __init__(self, status: int, said: Sequence[str]) -> None:
        self.status = status
        self.said = said
        self.folder = build_folder("cuda") / f"rebased-{RELEASE}"
        wheel = wheel_of_release("vllm", RELEASE, build_folder("cuda") / "wheels")
        self.upstream = unpack_text(wheel, build_folder("cuda") / f"text-{RELEASE}")
        self.series = load_series(self.folder)


@pytest.fixture(scope="module")
def next_release() -> Rebased:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("VLLM_UPSTREAM_WHEEL", raising=False)
        said: list[str] = []
        monkeypatch.setattr("builtins.print", lambda *parts: said.append(" ".join(parts)))
        status = main(["rebase", "--to", RELEASE, "--target", "cuda"])
    return Rebased(status, said)


def test_all_other_hunks_apply_to_the_next_release(next_release: Rebased) -> None:
    conflicts = []
    for line in next_release.said:
        if line.endswith(".patch"):
            patch = line
        elif "CONFLICT" in line:
            path, _, number = line.split()[0].partition(":")
            conflicts.append((patch, path, int(number)))
    assert conflicts == CONFLICTS
    series = load_series(ROOT / "patches")
    total = sum(len(hunks) for patch in series for hunks in patch.files.values())
    said = f"{total - len(CONFLICTS)} of {total} hunks apply to {RELEASE}; written to "
    assert next_release.said[-1].startswith(said)
    assert next_release.status == 1


def test_rejected_hunks_are_written_beside_the_series(next_release: Rebased) -> None:
    rejects = sorted(next_release.folder.rglob("*.rej"))
    names = [file.relative_to(next_release.folder).as_posix() for file in rejects]
    assert names == sorted({f"{name}.rej" for name, _, _ in CONFLICTS})
    for name, path, number in CONFLICTS:
        original = parse_patch(name, (ROOT / "patches" / name).read_text())
        hunk = next(hunk for hunk in original.files[path] if hunk.after == number)
        rejected = parse_patch("reject", (next_release.folder / f"{name}.rej").read_text())
        assert rejected.files.keys() == {file for patch, file, _ in CONFLICTS if patch == name}
        assert hunk in rejected.files[path]


def test_every_other_hunk_is_in_the_rebased_series(next_release: Rebased) -> None:
    def inserted(series: Sequence[Patch]) -> list[tuple[str, str, tuple[str, ...]]]:
        return [
            (patch.name, path, hunk.lines)
            for patch in series
            for path, hunks in patch.files.items()
            for hunk in hunks
            if (patch.name, path, hunk.after) not in CONFLICTS
        ]

    assert inserted(next_release.series) == inserted(load_series(ROOT / "patches"))


def test_each_rebased_patch_applies_to_the_next_release(next_release: Rebased) -> None:
    for patch in next_release.series:
        assert patched_files([patch], next_release.upstream).keys() == patch.files.keys()


def test_the_merged_files_compile(next_release: Rebased) -> None:
    merged = patched_files(next_release.series, next_release.upstream)
    assert merged
    for path, text in merged.items():
        assert text != (next_release.upstream / path).read_text()
        ast.parse(text, path)
