"""Carries the series from one upstream release to another by git's three-way merge."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distribution.errors import DistributionError
from distribution.series import Hunk, Patch, anchor_of, insert_hunks, read_source, split_lines


@dataclass(frozen=True)
class MergedHunk:
    """What became of one hunk.

    Attributes:
        path: of the file.
        old: the hunk against the old release.
        new: the hunk against the new release, or None.
        reason: why there is none.
    """

    path: str
    old: Hunk
    new: Hunk | None
    reason: str = ""


@dataclass(frozen=True)
class MergedPatch:
    """One patch with what became of its hunks."""

    old: Patch
    hunks: tuple[MergedHunk, ...]

    def applying(self) -> Patch:
        """Return the patch against the new release, with the hunks that merged."""
        files: dict[str, tuple[Hunk, ...]] = {}
        for hunk in self.hunks:
            if hunk.new is not None:
                files[hunk.path] = (*files.get(hunk.path, ()), hunk.new)
        return Patch(self.old.name, self.old.header, files)

    def conflicts(self) -> Patch:
        """Return the patch against the old release, with the hunks that did not merge."""
        files: dict[str, tuple[Hunk, ...]] = {}
        for hunk in self.hunks:
            if hunk.new is None:
                files[hunk.path] = (*files.get(hunk.path, ()), hunk.old)
        return Patch(self.old.name, self.old.header, files)


def rebase_series(series: Sequence[Patch], old: Path, new: Path) -> list[MergedPatch]:
    """Merge each hunk of the series into another release.

    Args:
        series: the patches against `old`.
        old: folder that holds the pinned release's ``vllm/``.
        new: folder that holds the other release's.
    """
    return [
        MergedPatch(
            patch,
            tuple(
                merge_hunk(path, hunk, old, new)
                for path, hunks in patch.files.items()
                for hunk in hunks
            ),
        )
        for patch in series
    ]


def merge_hunk(path: str, hunk: Hunk, old: Path, new: Path) -> MergedHunk:
    """Merge one hunk: base is the old file, one side the new file, the other the patched old."""
    if not (new / path).is_file():
        return MergedHunk(path, hunk, None, "the release has no such file")
    before = read_source(old / path)
    ours = read_source(new / path)
    merged = _three_way(ours, before, insert_hunks(before, [hunk]))
    if merged is None:
        return MergedHunk(path, hunk, None, "upstream changed the lines around it")
    carried = _find_insertion(split_lines(ours), split_lines(merged), hunk.lines)
    if carried is None:
        return MergedHunk(path, hunk, None, "upstream has the same lines already")
    return MergedHunk(path, hunk, carried)


def _three_way(ours: str, base: str, theirs: str) -> str | None:
    """Return git's merge, or None at a conflict."""
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name, text in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(folder) / name).write_bytes(text.encode())
            names.append(str(Path(folder) / name))
        command = ["git", "merge-file", "--quiet", "--stdout", *names]
        done = subprocess.run(command, capture_output=True)
    if done.returncode < 0 or done.returncode > 127:
        reason = done.stderr.decode().strip()
        raise DistributionError(f"`git merge-file` failed: {reason}.")
    return done.stdout.decode() if done.returncode == 0 else None


def _find_insertion(
    lines: Sequence[str], merged: Sequence[str], inserted: Sequence[str]
) -> Hunk | None:
    """Return the hunk that turns `lines` into `merged` by inserting `inserted`, if that is all."""
    added = [f"{line}\n" for line in inserted]
    for after in range(len(lines) + 1):
        if merged[after : after + len(inserted)] == added:
            rest = merged[after + len(inserted) :]
            if merged[:after] == lines[:after] and rest == lines[after:]:
                return Hunk(after, anchor_of(lines, after), tuple(inserted))
    return None


def wheel_of_release(dist: str, release: str, folder: Path) -> Path:
    """Return the wheel of another release, downloaded into `folder` unless it is there.

    Raises:
        DistributionError: pip cannot download it.
    """
    pattern = f"{dist.replace('-', '_')}-{release}-*x86_64.whl"
    if not any(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--dest", str(folder), f"{dist}=={release}"]  # fmt: skip
        if subprocess.run(pip).returncode != 0 or not any(folder.glob(pattern)):
            raise DistributionError(
                f"pip could not download {dist} {release}: check the version and the network, or "
                "give the wheel with --wheel."
            )
    return next(folder.glob(pattern))
