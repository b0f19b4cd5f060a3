"""Assembles the package: upstream's tree, with the patches applied and the overlay added.

    build/<target>/src/vllm/          what an editable installation runs from
    build/<target>/wheel-src/vllm/    what a wheel is made from
    build/<target>/<either>/made-from.json    what that is, and a digest of the result

A tree is made beside its place and moved there when it is complete, so that an interruption
leaves the last good one; it is made again only when something that it is made from has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from distribution.errors import DistributionError
from distribution.other_wheel import COMPILED
from distribution.pins import ROOT, Pin, load_pin
from distribution.pristine import (
    build_folder,
    compile_bytecode,
    pristine_tree,
    replacing,
)
from distribution.series import load_series, patched_files

PACKAGE = "vllm"
NO_BYTECODE = shutil.ignore_patterns("__pycache__")
STAND_INS = Path("fork", "source_kernels", "stand_ins")
"""Of the package: what is put into the place of upstream's compiled files."""


def assembled_tree(target: str, *, link: bool, kernels: str = "all", root: Path = ROOT) -> Path:
    """Return the folder with the package as it is installed, assembling it if something changed.

    Args:
        target: "cpu" or "cuda".
        link: link the overlay's files, so that edits are live (editable installation), instead
            of copying them (wheel).
        kernels: "all", or "source" to leave out upstream's compiled files.
        root: the repository.

    Raises:
        DistributionError: see `upstream_wheel`, `patched_files` and `_overlay`; or the tree holds
            edits that no patch records.
    """
    pin = load_pin(target, root, kernels)
    folder = build_folder(target, root) / ("src" if link else "wheel-src")
    record = _read_record(folder)
    pristine = pristine_tree(target, root, kernels)
    key = _key(pin, pristine, root, link)
    if record.get("key") == key:
        return folder
    if link and record and record["digest"] != _digest(folder):
        raise DistributionError(
            f"{folder} holds edits that no patch records: keep them with `python -m "
            f"distribution.patches new NAME` (or refresh NAME), or delete {folder}."
        )
    is_whole = kernels == "all"
    left_out = NO_BYTECODE if is_whole else shutil.ignore_patterns("__pycache__", *COMPILED)
    with replacing(folder) as partial:
        package = partial / PACKAGE
        shutil.copytree(pristine / PACKAGE, package, ignore=left_out, copy_function=_copy)
        for relative, text in patched_files(load_series(root / "patches"), pristine).items():
            (partial / relative).write_bytes(text.encode())
        _write_version(package, pin)
        _overlay(root / PACKAGE, package, link)
        if not is_whole:
            _fill(root / PACKAGE / STAND_INS, package, link)
        _write_record(partial, key)
    if link:
        compile_bytecode(folder)
    return folder


def keep_edited_tree(target: str, root: Path = ROOT) -> None:
    """Note that the editable tree, edited in place, is what the series makes now.

    Overlay files that came since it was assembled are linked by the next installation.
    """
    folder = build_folder(target, root) / "src"
    pristine = pristine_tree(target, root)
    overlay = [path.relative_to(root) for path in _overlay_files(root / PACKAGE)]
    is_whole = all((folder / path).exists() for path in overlay)
    key = _key(load_pin(target, root), pristine, root, link=True) if is_whole else ""
    _write_record(folder, key)


def _record_file(folder: Path) -> Path:
    return folder / "made-from.json"


def _read_record(folder: Path) -> dict[str, str]:
    """Return the key and the digest of a complete tree; nothing if there is none."""
    file = _record_file(folder)
    return json.loads(file.read_text()) if file.exists() else {}


def _write_record(folder: Path, key: str) -> None:
    _record_file(folder).write_text(json.dumps({"key": key, "digest": _digest(folder)}))


def _digest(folder: Path) -> str:
    """Return a hash of the Python files that are not links to the overlay."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):  # rglob does not follow links to folders
        if not path.is_symlink():
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def _key(pin: Pin, pristine: Path, root: Path, link: bool) -> str:
    """Return a hash of everything that the assembled tree is made from.

    Linked overlay files count by name, since their contents are live; copied ones by content.
    Links are absolute, so that another place of the repository makes another tree.
    """
    digest = hashlib.sha256(f"{pin} {pristine.name} {root.resolve() if link else ''}".encode())
    own_code = sorted(Path(__file__).parent.glob("*.py"))
    patches = sorted(path for path in (root / "patches").rglob("*") if path.is_file())
    for path in [*patches, *own_code]:
        digest.update(str(path.relative_to(path.parents[1])).encode() + path.read_bytes())
    for path in _overlay_files(root / PACKAGE):
        digest.update(str(path.relative_to(root)).encode())
        if not link:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _overlay_files(folder: Path) -> Iterator[Path]:
    """Yield the overlay's files, without what Python writes beside them."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _copy(source: str, destination: str) -> str:
    """Share the large binaries between the trees; copy what a patch may change."""
    if source.endswith(".so"):
        os.link(source, destination)
    else:
        shutil.copy2(source, destination)
    return destination


def _write_version(package: Path, pin: Pin) -> None:
    numbers = tuple(int(part) for part in pin.upstream_version.split("."))
    (package / "_version.py").write_text(
        f"__version__ = version = {pin.version!r}\n"
        f"__version_tuple__ = version_tuple = {numbers!r}\n"
        "__commit_id__ = commit_id = None\n"
    )


def _overlay(source: Path, destination: Path, link: bool) -> None:
    """Add the overlay's folders and files beside upstream's; for the errors see `_add`."""
    for path in _entries(source):
        _add(path, destination / path.name, link)


def _fill(source: Path, destination: Path, link: bool) -> None:
    """Add files to upstream's folders, in the places of its compiled ones, which are left out; for
    the errors see `_add`.
    """
    for path in _entries(source):
        target = destination / path.name
        if path.is_dir() and target.is_dir():
            _fill(path, target, link)
        else:
            _add(path, target, link)


def _entries(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"]


def _add(path: Path, target: Path, link: bool) -> None:
    """Add a folder or a file of the overlay.

    Raises:
        DistributionError: it has the name of one of upstream's.
    """
    if target.exists():
        raise DistributionError(
            f"The overlay's {path} has the name of one of upstream's: give it another name, "
            "or change upstream's files by a patch."
        )
    if link:
        target.symlink_to(path, target_is_directory=path.is_dir())
    elif path.is_dir():
        shutil.copytree(path, target, ignore=NO_BYTECODE)
    else:
        shutil.copy2(path, target)
