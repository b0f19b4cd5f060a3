"""Checks that there is room before anything is written."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from distribution.environment import site_packages
from distribution.errors import DistributionError

GIB = 1 << 30


@dataclass(frozen=True)
class Need:
    """Bytes that one step of the installation writes into a folder."""

    folder: Path
    size: int
    what: str


# Measured on 0.32.0, rounded up: wheel, its unpacked tree and the assembled copy in the build
# folder; pip's build environment (with torch) and wheel in the temporary folder; the
# dependencies in site-packages.
_NEEDS_GIB = {
    "cpu": {"build": 1.5, "temporary": 2.0, "site": 4.0},
    "cuda": {"build": 3.0, "temporary": 10.0, "site": 14.0},
}


def needs(target: str, build: Path, *, with_torch: bool) -> list[Need]:
    """Return what an installation for `target` writes where.

    Args:
        target: "cpu" or "cuda".
        build: this project's build folder.
        with_torch: torch and the other requirements are still to be installed.
    """
    sizes = {name: int(size * GIB) for name, size in _NEEDS_GIB[target].items()}
    temporary = Path(tempfile.gettempdir())
    if not with_torch:
        return [
            Need(build, sizes["build"], "the assembled tree"),
            Need(temporary, GIB // 2, "pip's build"),
        ]
    return [
        Need(build, sizes["build"], "the assembled tree"),
        Need(temporary, sizes["temporary"], "pip's build environment"),
        Need(site_packages(), sizes["site"], "torch and the other requirements"),
    ]


def check_disk(required: list[Need]) -> None:
    """Stop if a file system lacks room for what will be written to it.

    Raises:
        DistributionError: names the folder, what is needed and free, and how to move or save it.
    """
    by_device: dict[int, list[Need]] = {}
    for need in required:
        by_device.setdefault(_existing(need.folder).stat().st_dev, []).append(need)
    for wanted in by_device.values():
        size = sum(need.size for need in wanted)
        folder = _existing(wanted[0].folder)
        free = shutil.disk_usage(folder).free
        if free < size:
            listed = ", ".join(f"{n.what} in {n.folder} ({n.size / GIB:.1f} GiB)" for n in wanted)
            raise DistributionError(
                f"Not enough disk space on the file system of {folder}: {size / GIB:.1f} GiB are "
                f"needed and {free / GIB:.1f} GiB are free, for {listed}; free some, set TMPDIR "
                "to move temporary files and PIP_CACHE_DIR to move pip's cache to another disk, "
                "or pass --no-cache-dir to pip."
            )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
