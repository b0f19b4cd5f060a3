"""Finds what was edited in the assembled tree, and which patch it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from distribution.errors import DistributionError
from distribution.series import (
    Hunk,
    Patch,
    anchor_of,
    insert_hunks,
    patched_files,
    read_source,
    split_lines,
)

UPSTREAM = ""
"""Owner of upstream's lines; the other owners are names of patches."""


def record_edits(
    edited: Path, pristine: Path, series: Sequence[Patch], index: int, overlay: Path
) -> Patch:
    """Return ``series[index]`` with the edits of a tree in which the whole series was applied.

    Lines that no patch of the series inserted become this patch's; lines of this patch that are
    gone leave it.

    Args:
        edited: the folder that holds the edited ``vllm/``.
        pristine: the folder that holds upstream's.
        series: all patches, in order; an empty one at `index` is a new one.
        index: of the patch that gets the edits.
        overlay: the repository's ``vllm/``, whose files are not upstream's to patch.

    Raises:
        DistributionError: a line of upstream or of another patch was changed or removed, or the
            new lines stand where the series' order would put them elsewhere.
    """
    patch = series[index]
    before = patched_files(series, pristine)
    files: dict[str, tuple[Hunk, ...]] = {}
    for relative in sorted({*before, *_changed_files(edited, pristine, overlay)}):
        upstream = read_source(pristine / relative)
        current = read_source(edited / relative)
        hunks = _hunks_of(patch.name, relative, upstream, current, series)
        if hunks:
            files[relative] = hunks
        everything = [
            hunk
            for position, other in enumerate(series)
            for hunk in (hunks if position == index else other.files.get(relative, ()))
        ]
        if insert_hunks(upstream, everything) != current:
            raise DistributionError(
                f"The edits of {relative} stand between lines of another patch, or its last line "
                "has no end: move them before or after those lines, as the order of the series "
                "says, or end the line."
            )
    return Patch(patch.name, patch.header, files)


def _changed_files(edited: Path, pristine: Path, overlay: Path) -> Iterator[str]:
    """Yield the upstream Python files that the edited tree has in another form."""
    for original in (pristine / "vllm").rglob("*.py"):
        if not (edited / original.relative_to(pristine)).exists():
            raise DistributionError(
                f"{original.relative_to(pristine)} was removed; a patch only inserts lines."
            )
    for path in (edited / "vllm").rglob("*.py"):
        relative = path.relative_to(edited)
        ours = (overlay.parent / relative).exists() or relative.name == "_version.py"
        if ours or path.resolve() != (edited.resolve() / relative):
            continue
        original = pristine / relative
        if not original.exists():
            raise DistributionError(
                f"{relative} is a new file: put it in the overlay ({overlay}), patches only "
                "insert lines into upstream's files."
            )
        if original.read_bytes() != path.read_bytes():
            yield str(relative)


def _hunks_of(
    name: str, relative: str, upstream: str, current: str, series: Sequence[Patch]
) -> tuple[Hunk, ...]:
    """Return the hunks of patch `name` that, with those of the others, make `current`."""
    lines, owners = _owned_lines(upstream, relative, series)
    new_lines = _without_ends(current)
    new_owners: list[str] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, lines, new_lines, False).get_opcodes():
        if tag == "equal":
            new_owners += owners[i1:i2]
            continue
        for line, owner in zip(lines[i1:i2], owners[i1:i2], strict=True):
            if owner != name:
                raise DistributionError(
                    f"{relative}: the line '{line.strip()}' of {owner or 'upstream'} was changed "
                    "or removed; a patch only inserts lines of its own."
                )
        new_owners += [name] * (j2 - j1)
    return tuple(_group(name, new_lines, new_owners, _without_ends(upstream)))


def _owned_lines(
    upstream: str, relative: str, series: Sequence[Patch]
) -> tuple[list[str], list[str]]:
    """Return the lines of the patched file, and for each the patch that it is from."""
    marked = [
        Hunk(hunk.after, hunk.anchor, tuple(f"{patch.name}\0{line}" for line in hunk.lines))
        for patch in series
        for hunk in patch.files.get(relative, ())
    ]
    parts = [line.partition("\0") for line in _without_ends(insert_hunks(upstream, marked))]
    lines = [line if mark else owner for owner, mark, line in parts]
    owners = [owner if mark else UPSTREAM for owner, mark, _ in parts]
    return lines, owners


def _without_ends(text: str) -> list[str]:
    return [line.removesuffix("\n") for line in split_lines(text)]


def _group(
    name: str, lines: Sequence[str], owners: Sequence[str], upstream: Sequence[str]
) -> Iterator[Hunk]:
    """Yield the runs of lines that `name` owns, each with its place in upstream's file."""
    after = 0
    run: list[str] = []
    for line, owner in zip([*lines, ""], [*owners, UPSTREAM], strict=True):
        if owner == name:
            run.append(line)
            continue
        if run:
            yield Hunk(after, anchor_of(upstream, after), tuple(run))
            run = []
        after += owner == UPSTREAM
