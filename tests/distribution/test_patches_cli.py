"""``python -m distribution.patches check|new|refresh``: recording edits of the assembled tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from distribution.patches import MAX_LINES, MAX_PATCHES, main
from distribution.pins import TARGETS, load_pin
from distribution.series import Patch, format_patch, load_series, parse_patch
from distribution.tree import assembled_tree
from tests.distribution.fake_repository import (
    ENGINE,
    FIRST,
    PATCHED,
    SECOND,
    contents,
    identities,
    make_patch,
    write_series,
)
from tests.engines import ROOT

pytestmark = pytest.mark.fast

LLAMA = "vllm/models/llama.py"


@pytest.fixture
def tree(repository: Path) -> Path:
    """The assembled tree of `repository`, to be edited."""
    return assembled_tree("cpu", link=True, root=repository)


def run(root: Path, *arguments: str) -> int:
    return main([*arguments, "--target", "cpu"], root)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def patch_named(root: Path, name: str) -> Patch:
    return parse_patch(name, (root / "patches" / name).read_text())


def fill_in_header(root: Path, name: str) -> None:
    file = root / "patches" / name
    file.write_text(file.read_text().replace("TODO", "Written."))


# --- check ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", TARGETS)
def test_the_series_applies_to_the_pinned_wheel(
    capsys: pytest.CaptureFixture[str], target: str
) -> None:
    assert main(["check", "--target", target]) == 0
    series = load_series(ROOT / "patches")
    *listed, total = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [patch.name for patch in series]
    assert total.startswith(f"{len(series)} patches (at most 20), ")
    assert f"{sum(patch.num_lines for patch in series)} inserted lines (at most 155)" in total
    assert total.endswith(f"all apply to {load_pin(target).filename}")


@pytest.mark.parametrize(
    ("num_patches", "num_lines", "status"),
    [(20, 155, 0), (21, 21, 1), (1, 156, 1), (20, 156, 1)],
)
def test_the_series_must_stay_small(
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    num_patches: int,
    num_lines: int,
    status: int,
) -> None:
    assert (MAX_PATCHES, MAX_LINES) == (20, 155)
    sizes = [1] * (num_patches - 1) + [num_lines - num_patches + 1]
    write_series(
        repository,
        [make_patch(f"{i}.patch", {ENGINE: {1: ["x"] * size}}) for i, size in enumerate(sizes)],
    )
    assert run(repository, "check") == status
    said = capsys.readouterr()
    assert f"{num_patches} patches (at most 20), {num_lines} inserted lines" in said.out
    assert ("The series is larger than it may be" in said.err) == bool(status)


def test_check_names_a_patch_that_does_not_apply(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_series(repository, [make_patch("x.patch", {ENGINE: {1: ["x"]}}, {ENGINE: "other\n"})])
    assert run(repository, "check") == 1
    assert "error: x.patch does not apply to vllm/engine.py" in capsys.readouterr().err


# --- new -----------------------------------------------------------------------------------------
def test_new_records_the_edits(
    repository: Path, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(tree / ENGINE, "    late()\n", "    late()\n    mine()\n")
    edit(tree / LLAMA, "layers = 2\n", "layers = 2\nlayers += 1\nlayers += 2\n")
    edited = contents(tree)
    assert run(repository, "new", "hooks/mine") == 0
    assert "hooks/mine.patch: 3 lines; now fill in its header" in capsys.readouterr().out
    expected = make_patch(
        "hooks/mine.patch",
        {ENGINE: {3: ["    mine()"]}, LLAMA: {1: ["layers += 1", "layers += 2"]}},
    )
    assert patch_named(repository, expected.name).files == expected.files
    assert [patch.name for patch in load_series(repository / "patches")] == [
        FIRST.name, SECOND.name, expected.name]  # fmt: skip
    assert {k: v for k, v in contents(tree).items() if k.endswith(".py")} == {
        k: v for k, v in edited.items() if k.endswith(".py")
    }


def test_a_header_that_is_not_filled_in_does_not_pass_the_check(
    repository: Path, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(tree / LLAMA, "heads", "new = 1\nheads")
    run(repository, "new", "hooks/mine")
    assert run(repository, "check") == 1
    assert "hooks/mine.patch: replace TODO in its header" in capsys.readouterr().err
    fill_in_header(repository, "hooks/mine.patch")
    assert run(repository, "check") == 0


def test_a_recorded_tree_is_up_to_date(repository: Path, tree: Path) -> None:
    edit(tree / LLAMA, "heads", "new = 1\nheads")
    run(repository, "new", "hooks/mine")
    before = identities(tree)
    assembled_tree("cpu", link=True, root=repository)
    assert identities(tree) == before


def test_making_a_recorded_tree_again_gives_the_same_text(repository: Path, tree: Path) -> None:
    edit(tree / LLAMA, "heads", "new = 1\nheads")
    edit(tree / ENGINE, "    two()\n", "    two()\n    three()\n")
    edited = {name: (tree / name).read_text() for name in (LLAMA, ENGINE)}
    run(repository, "new", "hooks/mine")
    before = identities(tree / LLAMA)
    fill_in_header(repository, "hooks/mine.patch")
    assembled_tree("cpu", link=True, root=repository)
    assert identities(tree / LLAMA) != before
    assert {name: (tree / name).read_text() for name in (LLAMA, ENGINE)} == edited


def test_edits_of_linked_overlay_files_are_not_recorded(
    repository: Path, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "vllm/fork/__init__.py").write_text("edited = 1\n")
    (tree / "vllm/own/added.py").write_text("edited = 1\n")
    assert run(repository, "new", "hooks/mine") == 1
    assert "holds no edits for hooks/mine.patch" in capsys.readouterr().err


# --- refresh -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["first", "hooks/first", "hooks/first.patch"])
def test_refresh_writes_one_patch_and_leaves_the_others(
    repository: Path, tree: Path, name: str
) -> None:
    edit(tree / ENGINE, "    # one\n", "    # 1\n    zero()\n")
    edit(tree / LLAMA, "layers = 2\n", "layers = 2\nmore = 1\n")
    assert run(repository, "refresh", name) == 0
    refreshed = make_patch(
        FIRST.name, {ENGINE: {1: ["    # 1", "    zero()", "    one()"]}, LLAMA: {1: ["more = 1"]}}
    )
    assert load_series(repository / "patches") == [refreshed, SECOND]
    assert (repository / "patches" / SECOND.name).read_text() == format_patch(SECOND)


def test_lines_that_are_gone_leave_the_patch(repository: Path, tree: Path) -> None:
    edit(tree / ENGINE, "    late()\n", "")
    edit(tree / "vllm/__init__.py", "#\n", "")
    assert run(repository, "refresh", "second") == 0
    assert patch_named(repository, SECOND.name).files == {ENGINE: (SECOND.files[ENGINE][0],)}
    (repository / "patches" / "note").touch()  # makes the tree again
    made = assembled_tree("cpu", link=True, root=repository)
    assert (made / ENGINE).read_text() == PATCHED[ENGINE].replace("    late()\n", "")


def test_refresh_without_edits_changes_nothing(repository: Path, tree: Path) -> None:
    before = contents(repository / "patches")
    assert run(repository, "refresh", "second") == 0
    assert contents(repository / "patches") == before


# --- refusals ------------------------------------------------------------------------------------
REFUSED: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "upstream's line removed",
        lambda tree: edit(tree / ENGINE, "    second()\n", ""),
        "vllm/engine.py: the line 'second()' of upstream was changed or removed",
    ),
    (
        "upstream's line changed",
        lambda tree: edit(tree / LLAMA, "heads = 4", "heads = 8"),
        "vllm/models/llama.py: the line 'heads = 4' of upstream was changed or removed",
    ),
    (
        "another patch's line changed",
        lambda tree: edit(tree / ENGINE, "late()", "early()"),
        "vllm/engine.py: the line 'late()' of upstream-fixes/second.patch was changed or removed",
    ),
    (
        "out of the series' order",
        lambda tree: edit(tree / ENGINE, "    two()\n", "    two()\n    three()\n"),
        "The edits of vllm/engine.py stand between lines of another patch",
    ),
    (
        "new file",
        lambda tree: (tree / "vllm/models/opt.py").write_text("new = 1\n"),
        "vllm/models/opt.py is a new file: put it in the overlay",
    ),
    (
        "file removed",
        lambda tree: (tree / LLAMA).unlink(),
        "vllm/models/llama.py was removed; a patch only inserts lines",
    ),
    (
        "patched file removed",
        lambda tree: (tree / ENGINE).unlink(),
        "vllm/engine.py was removed; a patch only inserts lines",
    ),
]


@pytest.mark.parametrize(
    ("change", "sentence"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_a_patch_cannot_hold_is_refused(
    repository: Path,
    tree: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], object],
    sentence: str,
) -> None:
    change(tree)
    before = identities(repository)
    assert run(repository, "refresh", "first") == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {sentence}")
    assert said.err.count("\n") == 1
    assert not said.out
    assert identities(repository) == before


@pytest.mark.parametrize(
    ("command", "name", "sentence"),
    [
        ("new", "first", "A patch called first exists: use refresh"),
        (
            "new",
            "upstream-fixes/second",
            "A patch called upstream-fixes/second exists: use refresh",
        ),
        ("refresh", "third", "No patch of the series is called third: use new"),
        ("new", "third", "third names no folder of the series: call it hooks/third or upstream-"),
        ("new", "hooks/a/third", "hooks/a/third names no folder of the series: call it hooks/th"),
        ("new", "hooks/third", "src holds no edits for hooks/third.patch"),
    ],
)
def test_a_name_must_fit_the_command(
    repository: Path,
    tree: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    sentence: str,
) -> None:
    before = identities(repository)
    assert run(repository, command, name) == 1
    assert sentence in capsys.readouterr().err
    assert identities(repository) == before


def test_without_an_installation_there_is_nothing_to_record(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(repository, "new", "hooks/mine") == 1
    assert "src does not exist: run `pip install -e .` first" in capsys.readouterr().err
