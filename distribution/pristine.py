"""Upstream's wheel, unpacked and untouched, under the build folder.

build/<target>/wheels/            the upstream wheel
build/<target>/pristine-<sha>/    the wheel, unpacked
build/<target>/text-<sha>/        the same without what is compiled
"""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from distribution.fetch import sha256_of, upstream_wheel
from distribution.other_wheel import is_compiled
from distribution.pins import ROOT, Pin, load_pin


def build_folder(target: str, root: Path = ROOT) -> Path:
    """Return the git-ignored folder that everything for `target` is built in."""
    return root / "build" / target


@contextlib.contextmanager
def one_at_a_time(target: str, root: Path = ROOT) -> Iterator[None]:
    """Wait for another installation of this repository that builds for `target` now."""
    folder = build_folder(target, root)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pristine_tree(target: str, root: Path = ROOT, kernels: str = "all") -> Path:
    """Return the folder with upstream's unpatched ``vllm/``, unpacking the wheel if need be.

    Without its compiled files for `kernels` "source"; see `pristine_text`.

    Raises:
        DistributionError: the wheel cannot be had, see `upstream_wheel`.
    """
    if kernels == "source":
        return pristine_text(target, root)
    pin = load_pin(target, root)
    build = build_folder(target, root)
    tree = build / f"pristine-{_chosen_sha256(pin, build)[:12]}"
    return tree if tree.exists() else _unpack(upstream_wheel(pin, build / "wheels"), tree)


def _chosen_sha256(pin: Pin, build: Path) -> str:
    """Return the hash of the wheel that is installed from: the pinned one unless another is
    given."""
    if os.environ.get("VLLM_UPSTREAM_WHEEL"):
        return sha256_of(upstream_wheel(pin, build / "wheels"))
    return pin.sha256


def pristine_text(target: str, root: Path = ROOT) -> Path:
    """Return a folder with upstream's unpatched files, at least those that are not compiled.

    That is `pristine_tree` if it is there; else the binaries are not unpacked: they are large, and
    those of another target are of no use on this machine.

    Raises:
        DistributionError: the wheel cannot be had, see `upstream_wheel`.
    """
    pin = load_pin(target, root)
    build = build_folder(target, root)
    sha256 = _chosen_sha256(pin, build)
    whole, text = (build / f"{kind}-{sha256[:12]}" for kind in ("pristine", "text"))
    if whole.exists():
        return whole
    return text if text.exists() else unpack_text(upstream_wheel(pin, build / "wheels"), text)


def unpack_text(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel but for its binaries into `folder`, unless it is there, and return it."""
    return folder if folder.exists() else _unpack(wheel, folder, with_compiled=False)


def _unpack(wheel: Path, folder: Path, *, with_compiled: bool = True) -> Path:
    with replacing(folder) as partial, zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if with_compiled or not is_compiled(info.filename):
                path = Path(archive.extract(info, partial))
                mode = info.external_attr >> 16  # which zipfile leaves out: some files are programs
                if mode & 0o100 and path.is_file():
                    path.chmod(path.stat().st_mode | 0o111)
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
