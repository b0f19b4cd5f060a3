"""Patch files: what they may hold, and where their lines end up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distribution.errors import DistributionError
from distribution.pristine import pristine_text
from distribution.series import (
    FIELDS,
    Hunk,
    Patch,
    anchor_of,
    format_patch,
    insert_hunks,
    load_series,
    parse_patch,
    patched_files,
)
from tests.distribution.fake_repository import (
    ENGINE,
    FIRST,
    PATCHED,
    SECOND,
    UPSTREAM,
    contents,
    make_patch,
    write_files,
)
from tests.engines import ROOT

pytestmark = pytest.mark.fast

REAL = load_series(ROOT / "patches")
TEXT = format_patch(FIRST)


# --- the form of a patch file --------------------------------------------------------------------
@pytest.mark.parametrize("patch", REAL, ids=lambda patch: patch.name)
def test_the_patches_are_in_the_form_that_refresh_writes(patch: Patch) -> None:
    assert format_patch(patch) == (ROOT / "patches" / patch.name).read_text()


@pytest.mark.parametrize("field", FIELDS)
def test_every_header_field_is_required(field: str) -> None:
    text = "".join(
        line for line in TEXT.splitlines(keepends=True) if not line.startswith(f"{field}:")
    )
    with pytest.raises(DistributionError, match=rf"hooks/first.patch lacks .* '{field}:'"):
        parse_patch(FIRST.name, text)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("The why of hooks/first.patch.", "", "lacks the header field 'Why:'"),
        ("Why: ", "Reason: ", "'Reason: .*' belongs to none of the fields"),
        ("--- a/", "*** a/", "changes no file"),
        (
            "+++ b/vllm/engine.py",
            "+++ b/vllm/other.py",
            "is not followed by its '\\+\\+\\+ b/' line",
        ),
        ("@@ -1,0", "@@ -1,1", "patches only insert"),
        (" after ", " before ", "is not '@@ -LINE,0 \\+LINE,COUNT @@ after HASH'"),
        ("+    one()", "-    one()", "does not insert 2"),
        ("+    one()", "     one()", "does not insert 2"),
        ("+2,2", "+2,3", "does not insert 3"),
        ("+2,2", "+2,1", "'\\+    one\\(\\)' is not '@@"),
    ],
)
def test_malformed_patches_are_refused(old: str, new: str, sentence: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(DistributionError, match=f"^hooks/first.patch.*{sentence}"):
        parse_patch(FIRST.name, TEXT.replace(old, new))


def test_a_header_word_longer_than_a_line_is_read_back() -> None:
    header = FIRST.header | {"Upstream status": "https://example.org/" + "x" * 100}
    patch = Patch(FIRST.name, header, FIRST.files)
    assert parse_patch(FIRST.name, format_patch(patch)) == patch


def test_a_listed_patch_must_be_there(repository: Path) -> None:
    (repository / "patches" / SECOND.name).unlink()
    with pytest.raises(DistributionError, match=r"series lists upstream-fixes/second\.patch"):
        load_series(repository / "patches")


def test_a_patch_that_is_there_must_be_listed(repository: Path) -> None:
    (repository / "patches" / "series").write_text(f"# of one\n\n{SECOND.name}\n")
    with pytest.raises(DistributionError, match=r"series does not list hooks/first\.patch"):
        load_series(repository / "patches")


def test_the_series_is_read_in_the_order_of_its_list(repository: Path) -> None:
    (repository / "patches" / "series").write_text(f"{SECOND.name}\n{FIRST.name}\n")
    assert load_series(repository / "patches") == [SECOND, FIRST]


# --- inserting -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("a\nb\n", 0, "NEW\na\nb\n"),
        ("a\nb\n", 1, "a\nNEW\nb\n"),
        ("a\nb\n", 2, "a\nb\nNEW\n"),
        ("a\nb", 2, "a\nb\nNEW\n"),
        ("", 0, "NEW\n"),
        ("a\r\nb\r\n", 1, "a\r\nNEW\nb\r\n"),
        ("a\f\nb\n", 1, "a\f\nNEW\nb\n"),  # a form feed ends a line for str.splitlines only
    ],
)
def test_lines_are_inserted_after_the_named_line(text: str, after: int, expected: str) -> None:
    assert (
        insert_hunks(text, [Hunk(after, anchor_of(text.split("\n"), after), ("NEW",))]) == expected
    )


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ((FIRST, SECOND), ["# one", "one()", "two()"]),
        ((SECOND, FIRST), ["two()", "# one", "one()"]),
    ],
    ids=["first, second", "second, first"],
)
def test_insertions_at_one_line_follow_the_series(
    tmp_path: Path, series: tuple[Patch, ...], expected: list[str]
) -> None:
    text = patched_files(series, write_files(tmp_path, UPSTREAM))[ENGINE]
    assert [line.strip() for line in text.splitlines()[1:4]] == expected


def test_only_changed_files_are_returned(tmp_path: Path) -> None:
    changed = patched_files([FIRST, SECOND], write_files(tmp_path, UPSTREAM))
    assert changed == {path: PATCHED[path] for path in (ENGINE, "vllm/__init__.py")}


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (
            make_patch("p.patch", {ENGINE: {2: ["x"]}}, {ENGINE: "a\nmoved here\n"}),
            f"p.patch does not apply to {ENGINE}: line 2 is not the one that it was made for",
        ),
        (
            make_patch("p.patch", {ENGINE: {6: ["x"]}}, {ENGINE: "a\n" * 6}),
            f"p.patch does not apply to {ENGINE}: line 6 is not there",
        ),
        (
            make_patch("p.patch", {"vllm/gone.py": {1: ["x"]}}, {"vllm/gone.py": "a\n"}),
            "p.patch changes vllm/gone.py, which upstream lacks",
        ),
    ],
    ids=["another line", "no such line", "no such file"],
)
def test_a_patch_that_does_not_apply_is_named(tmp_path: Path, patch: Patch, reason: str) -> None:
    write_files(tmp_path, UPSTREAM)
    with pytest.raises(DistributionError) as refused:
        patched_files([FIRST, patch], tmp_path)
    assert str(refused.value).startswith(reason)
    assert contents(tmp_path) == UPSTREAM


LINES = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=8)
WORDS = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=120)
INSERTIONS = st.dictionaries(
    st.integers(0, 6), st.lists(LINES, min_size=1, max_size=4), min_size=1, max_size=4
)


@given(
    lines=st.lists(LINES, max_size=6),
    is_terminated=st.booleans(),
    patches=st.lists(INSERTIONS, min_size=1, max_size=3),
    reason=st.lists(WORDS, min_size=1, max_size=12).map(" ".join),
)
def test_formatted_and_parsed_patches_insert_what_they_were_made_of(
    lines: list[str], is_terminated: bool, patches: list[dict[int, list[str]]], reason: str
) -> None:
    upstream = "\n".join(lines) + "\n" * (is_terminated and bool(lines))
    num_lines = len(lines) if is_terminated or (lines and lines[-1]) else max(len(lines) - 1, 0)
    wanted = [
        {after: new for after, new in sorted(patch.items()) if after <= num_lines}
        for patch in patches
    ]
    made = [
        make_patch(f"{i}", {ENGINE: new}, {ENGINE: upstream}) for i, new in enumerate(wanted) if new
    ]
    made = [Patch(patch.name, dict.fromkeys(FIELDS, reason), patch.files) for patch in made]
    read = [parse_patch(patch.name, format_patch(patch)) for patch in made]
    assert read == made

    expected: list[str] = []
    for number in range(num_lines + 1):
        expected += lines[number - 1 : number] if number else []
        expected += [line for new in wanted for line in new.get(number, [])]
    ends_as_upstream = not any(num_lines in new for new in wanted)
    text = "".join(f"{line}\n" for line in expected)
    if ends_as_upstream and not upstream.endswith("\n"):
        text = text.removesuffix("\n")
    assert insert_hunks(upstream, [hunk for patch in read for hunk in patch.files[ENGINE]]) == text


# --- other tools read the patches ----------------------------------------------------------------
@pytest.mark.parametrize("patch", REAL, ids=lambda patch: patch.name)
def test_git_applies_each_patch_alone_to_the_same_result(tmp_path: Path, patch: Patch) -> None:
    pristine = pristine_text("cpu")
    write_files(tmp_path, {path: (pristine / path).read_text() for path in patch.files})
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    command = ["git", "apply", "--unidiff-zero", str(ROOT / "patches" / patch.name)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert contents(tmp_path) == patched_files([patch], pristine)
