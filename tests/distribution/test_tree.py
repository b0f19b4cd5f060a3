"""The assembled package: what it holds, when it is made again, and that it is never half-made."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from distribution import tree
from distribution.errors import DistributionError
from distribution.pins import load_pin
from distribution.pristine import build_folder, pristine_tree
from distribution.tree import assembled_tree
from tests.distribution.fake_repository import (
    ENGINE,
    FIRST,
    OVERLAY,
    PATCHED,
    UPSTREAM,
    contents,
    identities,
    make_patch,
    write_files,
    write_pin,
    write_series,
)

pytestmark = pytest.mark.fast

VERSION_FILE = "vllm/_version.py"
BOTH_KINDS = pytest.mark.parametrize("link", [True, False], ids=["editable", "wheel"])


def package(folder: Path) -> dict[str, str]:
    """Return the package's files, without what belongs to the build."""
    return {name: text for name, text in contents(folder).items() if name.startswith("vllm/")}


def edit_patch(root: Path) -> None:
    write_series(root, [make_patch(FIRST.name, {ENGINE: {1: ["    changed()"]}})])


# --- contents ------------------------------------------------------------------------------------
@BOTH_KINDS
def test_it_holds_upstream_patches_and_overlay(repository: Path, link: bool) -> None:
    made = package(assembled_tree("cpu", link=link, root=repository))
    version = made.pop(VERSION_FILE)
    assert made == {k: v for k, v in {**PATCHED, **OVERLAY}.items() if k != VERSION_FILE}
    assert "'1.2.0+cpu.hf1'" in version


@BOTH_KINDS
def test_upstream_stays_untouched(repository: Path, link: bool) -> None:
    assembled_tree("cpu", link=link, root=repository)
    assert package(pristine_tree("cpu", repository)) == UPSTREAM


@BOTH_KINDS
def test_the_version_module_has_upstreams_names(repository: Path, link: bool) -> None:
    made = assembled_tree("cpu", link=link, root=repository)
    names = runpy.run_path(str(made / VERSION_FILE))
    assert names["version"] == names["__version__"] == "1.2.0+cpu.hf1"
    assert names["version_tuple"] == names["__version_tuple__"] == (1, 2, 0)
    assert names["commit_id"] is names["__commit_id__"] is None


def test_edits_of_the_overlay_are_live_in_the_editable_tree(repository: Path) -> None:
    made = assembled_tree("cpu", link=True, root=repository)
    for name in OVERLAY:
        (repository / name).write_text("edited = True\n")
        assert (made / name).read_text() == "edited = True\n"


def test_the_wheels_tree_holds_copies_only(repository: Path) -> None:
    made = assembled_tree("cpu", link=False, root=repository)
    assert not [path for path in made.rglob("*") if path.is_symlink()]
    for name, text in OVERLAY.items():
        (repository / name).write_text("edited = True\n")
        assert (made / name).read_text() == text


@BOTH_KINDS
def test_bytecode_is_the_trees_own(repository: Path, link: bool) -> None:
    """Not that of upstream, where something ran from the unpacked wheel, or of the overlay."""
    pristine = pristine_tree("cpu", repository)
    for folder in (pristine / "vllm", pristine / "vllm/models", repository / "vllm",
                   repository / "vllm/own", repository / "vllm/fork/deep"):  # fmt: skip
        write_files(folder, {"__pycache__/module.cpython-311.pyc": "bytecode"})
    made = assembled_tree("cpu", link=link, root=repository)
    found = {path.name.split(".")[0] for path in made.rglob("*.pyc")}  # not behind links
    assert "module" not in found
    assert bool(found) == link, "pip compiles what it copies from a wheel"


# --- without upstream's compiled files ---------------------------------------------------------
@BOTH_KINDS
def test_a_stand_in_replaces_nothing_of_upstream(repository: Path, link: bool) -> None:
    write_files(repository, {"vllm/fork/source_kernels/stand_ins/models/llama.py": "own = 6\n"})
    with pytest.raises(DistributionError, match=r"models/llama\.py has the name of one of upstr"):
        assembled_tree("cpu", link=link, kernels="source", root=repository)


@BOTH_KINDS
def test_a_tree_from_source_has_files_in_the_places_of_the_compiled_ones(
    repository: Path, link: bool
) -> None:
    complete = package(assembled_tree("cpu", link=link, root=repository))
    made = package(assembled_tree("cpu", link=link, kernels="source", root=repository))
    for name in ("vllm/_C.abi3.so", "vllm/vllm-rs"):
        del complete[name]
    stand_ins = {"vllm/_C.py": "own = 4\n", "vllm/models/_kernels.py": "own = 5\n"}
    assert made == {**complete, **stand_ins}
    assert package(assembled_tree("cpu", link=link, root=repository)).keys() == {
        *PATCHED,
        *OVERLAY,
    }


def test_a_tree_from_source_needs_no_binaries_of_the_wheel(repository: Path) -> None:
    assembled_tree("cpu", link=True, kernels="source", root=repository)
    unpacked = [path.name for path in build_folder("cpu", repository).rglob("*.so")]
    assert unpacked == []


def test_a_tree_from_source_leaves_out_the_binaries_of_an_unpacked_wheel(repository: Path) -> None:
    pristine_tree("cpu", repository)
    made = assembled_tree("cpu", link=True, kernels="source", root=repository)
    assert not list(made.rglob("*.so"))


# --- when it is made again -----------------------------------------------------------------------
@BOTH_KINDS
def test_a_second_call_does_nothing(repository: Path, link: bool) -> None:
    made = assembled_tree("cpu", link=link, root=repository)
    before = identities(build_folder("cpu", repository))
    assert assembled_tree("cpu", link=link, root=repository) == made
    assert identities(build_folder("cpu", repository)) == before


@BOTH_KINDS
@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        (edit_patch, ENGINE, UPSTREAM[ENGINE].replace("run():\n", "run():\n    changed()\n")),
        (lambda root: write_series(root, []), ENGINE, UPSTREAM[ENGINE]),
        (
            lambda root: write_files(root, {"vllm/fork/new.py": "new\n"}),
            "vllm/fork/new.py",
            "new\n",
        ),
        (lambda root: write_files(root, {"vllm/new.py": "new\n"}), "vllm/new.py", "new\n"),
        (lambda root: shutil.rmtree(root / "vllm/fork"), "vllm/fork/__init__.py", None),
        (lambda root: (root / "vllm/own/added.py").unlink(), "vllm/own/added.py", None),
    ],
    ids=["patch edited", "patches removed", "file in folder", "file", "no folder", "no file"],
)
def test_a_change_makes_it_again(
    repository: Path, link: bool, change: Callable[[Path], None], name: str, text: str | None
) -> None:
    assert package(assembled_tree("cpu", link=link, root=repository)).get(name) != text
    change(repository)
    assert package(assembled_tree("cpu", link=link, root=repository)).get(name) == text


def test_a_change_of_the_version_makes_it_again(repository: Path) -> None:
    assembled_tree("cpu", link=True, root=repository)
    sha256 = load_pin("cpu", repository).sha256
    write_pin(repository, sha256, fork=2)
    made = assembled_tree("cpu", link=True, root=repository)
    assert "'1.2.0+cpu.hf2'" in (made / VERSION_FILE).read_text()


def test_an_edit_of_the_overlay_makes_only_the_wheels_tree_again(repository: Path) -> None:
    linked = assembled_tree("cpu", link=True, root=repository)
    assembled_tree("cpu", link=False, root=repository)
    before = identities(linked)
    (repository / "vllm/fork/__init__.py").write_text("edited = True\n")
    copied = assembled_tree("cpu", link=False, root=repository)
    assert (copied / "vllm/fork/__init__.py").read_text() == "edited = True\n"
    assembled_tree("cpu", link=True, root=repository)
    assert identities(linked) == before


def test_the_links_follow_a_repository_that_was_moved(repository: Path) -> None:
    before = package(assembled_tree("cpu", link=True, root=repository))
    moved = repository.rename(repository.with_name("moved"))
    assert package(assembled_tree("cpu", link=True, root=moved)) == before


# --- the last good tree stays --------------------------------------------------------------------
def shadow_file(root: Path) -> None:
    write_files(root, {ENGINE: "shadows = True\n"})


def shadow_folder(root: Path) -> None:
    write_files(root, {"vllm/models/new.py": "is_lost = True\n"})


def break_patch(root: Path) -> None:
    write_series(root, [make_patch("hooks/bad.patch", {ENGINE: {1: ["x"]}}, {ENGINE: "other\n"})])


@BOTH_KINDS
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (shadow_file, r"repository/vllm/engine\.py has the name of one of upstream's"),
        (shadow_folder, r"repository/vllm/models has the name of one of upstream's"),
        (break_patch, r"hooks/bad\.patch does not apply to vllm/engine\.py"),
    ],
)
def test_an_error_leaves_the_build_folder_as_it_was(
    repository: Path, link: bool, change: Callable[[Path], None], sentence: str
) -> None:
    assembled_tree("cpu", link=link, root=repository)
    before = identities(build_folder("cpu", repository) / ("src" if link else "wheel-src"))
    names = sorted(path.name for path in build_folder("cpu", repository).iterdir())
    change(repository)
    with pytest.raises(DistributionError, match=sentence):
        assembled_tree("cpu", link=link, root=repository)
    after = identities(build_folder("cpu", repository) / ("src" if link else "wheel-src"))
    assert after == before
    assert sorted(path.name for path in build_folder("cpu", repository).iterdir()) == names


@pytest.mark.parametrize("step", ["patched_files", "_write_version", "_overlay", "_write_record"])
def test_an_interruption_leaves_the_last_good_tree(
    repository: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    made = assembled_tree("cpu", link=True, root=repository)
    before = identities(made)
    edit_patch(repository)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tree, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            assembled_tree("cpu", link=True, root=repository)
    assert identities(made) == before
    assert "changed()" in (assembled_tree("cpu", link=True, root=repository) / ENGINE).read_text()


def test_leftovers_of_a_killed_build_do_not_end_up_in_the_tree(repository: Path) -> None:
    build = build_folder("cpu", repository)
    write_files(build / "src.partial", {"vllm/half.py": "half"})
    write_files(build / "src.old", {"vllm/older.py": "older"})
    made = assembled_tree("cpu", link=True, root=repository)
    assert package(made).keys() == {**PATCHED, **OVERLAY}.keys()
    assert sorted(path.name for path in build.glob("src*")) == ["src"]


def test_unrecorded_edits_are_refused_and_kept(repository: Path) -> None:
    made = assembled_tree("cpu", link=True, root=repository)
    edited = (made / ENGINE).read_text() + "mine = 1\n"
    (made / ENGINE).write_text(edited)
    edit_patch(repository)
    with pytest.raises(DistributionError, match="src holds edits that no patch records"):
        assembled_tree("cpu", link=True, root=repository)
    assert (made / ENGINE).read_text() == edited


def test_unrecorded_edits_do_not_stop_an_installation_that_changes_nothing(
    repository: Path,
) -> None:
    made = assembled_tree("cpu", link=True, root=repository)
    (made / ENGINE).write_text("mine = 1\n")
    assembled_tree("cpu", link=True, root=repository)
    assert (made / ENGINE).read_text() == "mine = 1\n"
