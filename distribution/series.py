"""Patch files: their form, their order, and how they are applied.

A patch is a unified diff without context lines, which only inserts, preceded by a header of four
fields. All patches refer to upstream's file as it is, not to each other, so that each can be read,
dropped, rewritten and carried to another release alone; where two insert after the same line, the
series' order decides.

They are applied strictly, at the line numbers that they name: the pinned wheel makes them exact.
Since an inserted line has no context that could fail to match, each hunk also carries the hash of
the line that it follows, so that a patch against a shifted file is an error and not a wrong
insertion.
"""

from __future__ import annotations

import hashlib
import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distribution.errors import DistributionError

FIELDS = ("Why", "How", "Upstream status", "Exit condition")
_HUNK = re.compile(r"^@@ -(\d+),0 \+(\d+)(?:,(\d+))? @@ after ([0-9a-f]{12})$")


@dataclass(frozen=True)
class Hunk:
    """Lines to insert.

    Attributes:
        after: 1-based number of the line that they follow in upstream's file.
        anchor: hash of that line, see `line_hash`.
        lines: the inserted lines, without line ends.
    """

    after: int
    anchor: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Patch:
    """One file of the series.

    Attributes:
        name: of the file, in the folder of the series ("hooks/flags.patch").
        header: the four `FIELDS` and their texts.
        files: path relative to the tree ("vllm/...") to its hunks, in order.
    """

    name: str
    header: dict[str, str]
    files: dict[str, tuple[Hunk, ...]]

    @property
    def num_lines(self) -> int:
        """Number of lines that the patch inserts."""
        return sum(len(hunk.lines) for hunks in self.files.values() for hunk in hunks)


def read_source(path: Path) -> str:
    """Return the text of a file; line ends stay as they are, and the locale does not matter."""
    return path.read_bytes().decode()


def split_lines(text: str) -> list[str]:
    """Return the lines with their ends, counted as git does: only a line feed ends one."""
    return list(io.StringIO(text, newline="\n"))


def line_hash(line: str) -> str:
    """Return 12 hex digits of the SHA-256 of a line without its end."""
    return hashlib.sha256(line.encode()).hexdigest()[:12]


def parse_patch(name: str, text: str) -> Patch:
    """Read one patch file.

    Raises:
        DistributionError: it is not of the form described above.
    """
    head, _, body = text.partition("\n--- ")
    if not body:
        raise DistributionError(f"{name} changes no file: it holds no line that starts with '---'.")
    files: dict[str, tuple[Hunk, ...]] = {}
    for section in ("--- " + body).split("\n--- "):
        lines = section.removeprefix("--- ").removesuffix("\n").split("\n")
        old, new = lines[0], lines[1] if len(lines) > 1 else ""
        if not old.startswith("a/") or new != f"+++ b/{old[2:]}":
            raise DistributionError(f"{name}: '--- {old}' is not followed by its '+++ b/' line.")
        files[old[2:]] = tuple(_parse_hunks(name, lines[2:]))
    return Patch(name, _parse_header(name, head), files)


def _parse_header(name: str, head: str) -> dict[str, str]:
    header: dict[str, str] = {}
    for line in head.splitlines():
        key, colon, value = line.partition(":")
        if colon and key in FIELDS:
            header[key] = value.strip()
        elif header and line.startswith("  "):
            last = list(header)[-1]
            header[last] = f"{header[last]} {line.strip()}".strip()
        elif line.strip():
            raise DistributionError(f"{name}: '{line}' belongs to none of the fields {FIELDS}.")
    for field in FIELDS:
        if not header.get(field, "").strip():
            raise DistributionError(f"{name} lacks the header field '{field}:'.")
    return header


def _parse_hunks(name: str, lines: list[str]) -> list[Hunk]:
    hunks: list[Hunk] = []
    position = 0
    while position < len(lines):
        match = _HUNK.match(lines[position])
        if not match:
            raise DistributionError(
                f"{name}: '{lines[position]}' is not '@@ -LINE,0 +LINE,COUNT @@ after HASH'; "
                "patches only insert, and `python -m distribution.patches refresh` writes them."
            )
        count = int(match[3] or 1)
        inserted = lines[position + 1 : position + 1 + count]
        if len(inserted) != count or not all(line.startswith("+") for line in inserted):
            raise DistributionError(
                f"{name}: the hunk '{lines[position]}' does not insert {count}."
            )
        hunks.append(Hunk(int(match[1]), match[4], tuple(line[1:] for line in inserted)))
        position += 1 + count
    return hunks


def format_patch(patch: Patch) -> str:
    """Return the text of a patch file; `parse_patch` reads it back."""
    parts = [_format_field(field, patch.header[field]) for field in FIELDS]
    parts.append("")
    for path, hunks in patch.files.items():
        parts += [f"--- a/{path}", f"+++ b/{path}"]
        shift = 0
        for hunk in hunks:
            count = len(hunk.lines)
            size = "" if count == 1 else f",{count}"
            new = hunk.after + shift + 1
            parts.append(f"@@ -{hunk.after},0 +{new}{size} @@ after {hunk.anchor}")
            parts += [f"+{line}" for line in hunk.lines]
            shift += count
    return "\n".join(parts) + "\n"


def _format_field(field: str, text: str) -> str:
    return "\n".join(
        textwrap.wrap(
            f"{field}: {text}",
            98,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    )


def load_series(folder: Path) -> list[Patch]:
    """Read the patches that ``series`` in `folder` lists, in order.

    Raises:
        DistributionError: a patch is malformed, listed but absent, or present but not listed.
    """
    names = [
        line.strip()
        for line in (folder / "series").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*.patch")}
    if missing := [name for name in names if name not in present]:
        raise DistributionError(f"{folder}/series lists {missing[0]}, which is not there.")
    if unlisted := sorted(present - set(names)):
        raise DistributionError(f"{folder}/series does not list {unlisted[0]}: add or remove it.")
    return [parse_patch(name, read_source(folder / name)) for name in names]


def insert_hunks(text: str, hunks: Sequence[Hunk]) -> str:
    """Return `text` with the hunks' lines inserted; `hunks` may be of several patches, in order.

    Raises:
        ValueError: a hunk follows another line than the one it was made for; says which.
    """
    lines = split_lines(text)
    result: list[str] = []
    position = 0
    for hunk in sorted(hunks, key=lambda hunk: hunk.after):  # stable: equals keep their order
        if hunk.after > len(lines):
            raise ValueError(f"line {hunk.after} is not there")
        if anchor_of(lines, hunk.after) != hunk.anchor:
            raise ValueError(f"line {hunk.after} is not the one that it was made for")
        result += lines[position : hunk.after]
        if result and not result[-1].endswith("\n"):
            result[-1] += "\n"  # the file's last line, unterminated
        result += [f"{line}\n" for line in hunk.lines]
        position = hunk.after
    return "".join(result + lines[position:])


def anchor_of(lines: Sequence[str], after: int) -> str:
    """Return the hash of the line numbered `after` (1-based; 0 is the start of the file)."""
    return line_hash(lines[after - 1].rstrip("\n") if after else "")


def patched_files(series: Sequence[Patch], tree: Path) -> dict[str, str]:
    """Return the patched text of every file that the series changes, without writing it.

    Args:
        series: the patches, in order.
        tree: the folder that holds upstream's ``vllm/``.

    Raises:
        DistributionError: a patch does not apply; names the patch, the file and the line.
    """
    hunks: dict[str, list[Hunk]] = {}
    for patch in series:
        for relative, own in patch.files.items():
            path = tree / relative
            if not path.is_file():
                raise DistributionError(f"{patch.name} changes {relative}, which upstream lacks.")
            try:
                insert_hunks(read_source(path), own)
            except ValueError as error:
                raise DistributionError(
                    f"{patch.name} does not apply to {relative}: {error}; carry it over with "
                    "`python -m distribution.patches rebase`."
                ) from None
            hunks.setdefault(relative, []).extend(own)
    return {
        relative: insert_hunks(read_source(tree / relative), every)
        for relative, every in hunks.items()
    }
