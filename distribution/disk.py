"""Checks that there is room before anything is written."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from distribution.environment import site_packages
from distribution.errors import DistributionError
from distribution.memory import GIB
from distribution.torch_source import TorchSource


@dataclass(frozen=True)
class Need:
    """Bytes that one step of the installation writes into a folder."""

    folder: Path
    size: int
    what: str


# Measured on 0.32.0, rounded up, in GiB: wheel, its unpacked tree and the assembled copy in the
# build folder; what of torch is compiled against; what pip downloads into the temporary folder,
# and the requirements in site-packages, by target and, for CPUs, by the build of torch.
_BUILD = {"cpu": 1.3, "cuda": 2.5}
_UNPACKED_TORCH = {"cpu": 0.6, "cuda": 2.0}
_DOWNLOADS = {"cpu": 1.0, "cuda build": 3.5, "cuda": 5.0}
_INSTALLED = {"cpu": 3.2, "cuda build": 6.5, "cuda": 14.0}


def needs(
    target: str, build: Path, *, torch: TorchSource | None, site: Path | None = None
) -> list[Need]:
    """Return what an installation for `target` writes where.

    Args:
        target: "cpu" or "cuda".
        build: this project's build folder.
        torch: where the torch comes from that is still to be installed, with the other
            requirements; None if there is one.
        site: the folder that packages are installed into; default: this Python's.
    """
    temporary = Path(tempfile.gettempdir())
    tree = Need(build, int(_BUILD[target] * GIB), "the assembled tree")
    if torch is None:
        return [tree, Need(temporary, GIB // 2, "pip's build")]
    kind = "cuda build" if target == "cpu" and torch.is_cuda_build else target
    return [
        tree,
        Need(build, int(_UNPACKED_TORCH[target] * GIB), "what of torch is compiled against"),
        Need(temporary, int(_DOWNLOADS[kind] * GIB), "what pip downloads"),
        Need(
            site or site_packages(), int(_INSTALLED[kind] * GIB), "torch and the other requirements"
        ),
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
                "to move temporary files to another disk."
            )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
