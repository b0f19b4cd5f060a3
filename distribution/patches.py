"""Keeps the patch series: ``python -m distribution.patches check|new|refresh|rebase``.

    check              the series is complete, applies to the pinned wheel, and stays small
    new hooks/NAME     make a patch of the edits in the assembled tree (or upstream-fixes/NAME)
    refresh NAME       write a patch again, with the edits in the assembled tree
    rebase --to X.Y.Z  carry the series to another upstream release by three-way merge

The edits that ``new`` and ``refresh`` look at are made in build/<target>/src/vllm, where an
editable installation runs from: change a file of upstream's there, try it, then record it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from distribution.edits import record_edits
from distribution.errors import DistributionError
from distribution.pins import ROOT, TARGETS, load_pin
from distribution.pristine import build_folder, pristine_text, replacing, unpack_text
from distribution.rebase import MergedPatch, rebase_series, wheel_of_release
from distribution.series import FIELDS, Patch, format_patch, load_series, patched_files
from distribution.target import choose_target
from distribution.tree import keep_edited_tree

FOLDERS = ("hooks", "upstream-fixes")
"""Of the series: what hands upstream's objects to the overlay, and what upstream should mend."""

MAX_PATCHES = 20
MAX_LINES = 155
"""The series stays small enough to be carried to every release. A patch has one purpose, so that
their number says how many of upstream's places the fork needs."""

UNWRITTEN = "TODO"
"""What `new` puts into the header."""


def check(root: Path, target: str) -> int:
    """Apply the series to the pinned wheel, in memory, and print what it amounts to."""
    series = load_series(root / "patches")
    patched_files(series, pristine_text(target, root))
    for patch in series:
        if UNWRITTEN in patch.header.values():
            raise DistributionError(f"{patch.name}: replace {UNWRITTEN} in its header.")
        print(f"{patch.name:48} {patch.num_lines:3} lines in {len(patch.files)} files")
    lines = sum(patch.num_lines for patch in series)
    print(
        f"{len(series)} patches (at most {MAX_PATCHES}), {lines} inserted lines (at most "
        f"{MAX_LINES}): all apply to {load_pin(target, root).filename}"
    )
    if len(series) > MAX_PATCHES or lines > MAX_LINES:
        raise DistributionError("The series is larger than it may be: move code to the overlay.")
    return 0


def new(root: Path, name: str, target: str) -> int:
    """Append a patch with the edits of the assembled tree, and a header to be filled in."""
    series = load_series(root / "patches")
    if any(_matches(patch, name) for patch in series):
        raise DistributionError(f"A patch called {name} exists: use refresh.")
    if name.partition("/")[0] not in FOLDERS or name.count("/") != 1:
        choices = " or ".join(f"{folder}/{name.rpartition('/')[2]}" for folder in FOLDERS)
        raise DistributionError(f"{name} names no folder of the series: call it {choices}.")
    patch = Patch(f"{name}.patch", dict.fromkeys(FIELDS, UNWRITTEN), {})
    written = _record(root, target, [*series, patch], len(series))
    with (root / "patches" / "series").open("a") as listing:
        listing.write(f"{written.name}\n")
    keep_edited_tree(target, root)
    print(f"{written.name}: {written.num_lines} lines; now fill in its header")
    return 0


def refresh(root: Path, name: str, target: str) -> int:
    """Write the named patch again from the assembled tree; the other patches stay."""
    series = load_series(root / "patches")
    index = next((i for i, patch in enumerate(series) if _matches(patch, name)), None)
    if index is None:
        raise DistributionError(f"No patch of the series is called {name}: use new.")
    written = _record(root, target, series, index)
    keep_edited_tree(target, root)
    print(f"{written.name}: {written.num_lines} lines")
    return 0


def _write(patch: Patch, file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(format_patch(patch).encode())


def _matches(patch: Patch, name: str) -> bool:
    stem = patch.name.removesuffix(".patch")
    return name in (patch.name, stem, stem.rpartition("/")[2])


def _record(root: Path, target: str, series: list[Patch], index: int) -> Patch:
    edited = build_folder(target, root) / "src"
    if not edited.exists():
        raise DistributionError(
            f"{edited} does not exist: run `pip install -e .` first, edit there, then record."
        )
    recorded = record_edits(edited, pristine_text(target, root), series, index, root / "vllm")
    if not recorded.files:
        raise DistributionError(f"{edited} holds no edits for {recorded.name}.")
    _write(recorded, root / "patches" / recorded.name)
    return recorded


def rebase(root: Path, release: str, target: str, wheel: Path | None, write: bool) -> int:
    """Merge the series into another release and print, patch by patch, what applies."""
    build = build_folder(target, root)
    dist = load_pin(target, root).dist
    series, pristine = load_series(root / "patches"), pristine_text(target, root)
    patched_files(series, pristine)  # an error, if the series does not even apply to its own wheel
    if wheel and not wheel.is_file():
        raise DistributionError(f"--wheel names {wheel}, which does not exist.")
    wheel = wheel or wheel_of_release(dist, release, build / "wheels")
    merged = rebase_series(series, pristine, unpack_text(wheel, build / f"text-{release}"))
    for patch in merged:
        _report(patch)
    hunks = [hunk for patch in merged for hunk in patch.hunks]
    applying = sum(hunk.new is not None for hunk in hunks)
    complete = applying == len(hunks)
    if write and complete:
        output = root / "patches"
        _write_merged(merged, output)
    else:
        output = build / f"rebased-{release}"
        with replacing(output) as folder:
            _write_merged(merged, folder)
    print(f"{applying} of {len(hunks)} hunks apply to {release}; written to {output}")
    return 0 if complete else 1


def _report(patch: MergedPatch) -> None:
    print(patch.old.name)
    for hunk in patch.hunks:
        place = f"  {hunk.path}:{hunk.old.after}"
        if hunk.new is None:
            print(f"{place} CONFLICT: {hunk.reason}")
        else:
            print(f"{place} -> {hunk.new.after}")


def _write_merged(merged: list[MergedPatch], folder: Path) -> None:
    """Write what applies as a series, and what does not beside it as NAME.rej."""
    applying = [patch.applying() for patch in merged]
    kept = [patch for patch in applying if patch.files]  # the others are in their .rej alone
    for patch in kept:
        _write(patch, folder / patch.name)
    for patch in (patch.conflicts() for patch in merged):
        if patch.files:
            _write(patch, folder / f"{patch.name}.rej")
    (folder / "series").write_text("".join(f"{patch.name}\n" for patch in kept))


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m distribution.patches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("check", "new", "refresh", "rebase"):
        sub = commands.add_parser(command)
        sub.add_argument("--target", choices=TARGETS, help="default: as an installation chooses")
        if command in ("new", "refresh"):
            sub.add_argument("name")
    sub.add_argument("--to", required=True, metavar="X.Y.Z")
    sub.add_argument("--wheel", type=Path, help="the release's wheel, if it is already here")
    sub.add_argument("--write", action="store_true", help="replace patches/ if all hunks apply")
    args = parser.parse_args(arguments)
    try:
        target = args.target or choose_target()
        if args.command == "check":
            return check(root, target)
        if args.command == "new":
            return new(root, args.name, target)
        if args.command == "refresh":
            return refresh(root, args.name, target)
        return rebase(root, args.to, target, args.wheel, args.write)
    except DistributionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
