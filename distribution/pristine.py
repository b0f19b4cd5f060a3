"""Upstream's wheel, unpacked and untouched, under the build folder.

build/<target>/wheels/            the upstream wheel
build/<target>/pristine-<sha>/    the wheel, unpacked
build/<target>/python-<sha>/      only its Python files
"""

from __future__ import annotations

import compileall
import contextlib
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from distribution.fetch import upstream_wheel
from distribution.pins import ROOT, load_pin


def build_folder(target: str, root: Path = ROOT) -> Path:
    """Return the git-ignored folder that everything for `target` is built in."""
    return root / "build" / target


def pristine_tree(target: str, root: Path = ROOT) -> Path:
    """Return the folder with upstream's unpatched ``vllm/``, unpacking the wheel if need be.

    Raises:
        DistributionError: the wheel cannot be had, see `upstream_wheel`.
    """
    pin = load_pin(target, root)
    build = build_folder(target, root)
    tree = build / f"pristine-{pin.sha256[:12]}"
    return tree if tree.exists() else _unpack(upstream_wheel(pin, build / "wheels"), tree, "")


def pristine_python(target: str, root: Path = ROOT) -> Path:
    """Return a folder with upstream's unpatched Python files, for reading them.

    That is `pristine_tree` if it is there; else only the text of the wheel is unpacked, since the
    binaries of the other target are large and of no use on this machine.

    Raises:
        DistributionError: the wheel cannot be had, see `upstream_wheel`.
    """
    pin = load_pin(target, root)
    build = build_folder(target, root)
    whole, python = (build / f"{kind}-{pin.sha256[:12]}" for kind in ("pristine", "python"))
    if whole.exists():
        return whole
    return (
        python if python.exists() else unpack_python(upstream_wheel(pin, build / "wheels"), python)
    )


def unpack_python(wheel: Path, folder: Path) -> Path:
    """Unpack the Python files of a wheel into `folder`, unless it is there, and return it."""
    return folder if folder.exists() else _unpack(wheel, folder, ".py")


def _unpack(wheel: Path, folder: Path, suffix: str) -> Path:
    with replacing(folder) as partial, zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial, [n for n in archive.namelist() if n.endswith(suffix)])
    return folder


def compile_bytecode(folder: Path) -> None:
    """Write the bytecode of a folder's Python files, as pip does for what it copies.

    Where Python may write none itself (``PYTHONDONTWRITEBYTECODE``, as in many containers), every
    process of an engine would compile all of vLLM.
    """
    compileall.compile_dir(folder, quiet=2, workers=0)


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which becomes `folder` if the block ends without an error.

    After an error, or an interruption, `folder` is what it was.
    """
    partial = _emptied(folder.with_name(f"{folder.name}.partial"))
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial)
        raise
    retired = _emptied(folder.with_name(f"{folder.name}.old"))
    if folder.exists():
        folder.rename(retired)
    partial.rename(folder)
    shutil.rmtree(retired)


def _emptied(folder: Path) -> Path:
    """Make `folder` anew, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
