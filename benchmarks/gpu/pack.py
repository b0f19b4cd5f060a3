"""Puts into build/gpu/pack what a GPU machine without network needs besides this repository.

    python -m benchmarks.gpu.pack [--python 3.12]

wheels/*.whl    those of wheels.txt
python.txt      the version of Python that they are for
text.tar.xz     upstream's package without what is compiled in it

Needs pip and a network. What travels, the repository included, is refused above 64 MiB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from distribution.pins import ROOT
from distribution.pristine import pristine_text, replacing

FOLDER = ROOT / "build" / "gpu" / "pack"
WHEELS = Path(__file__).with_name("wheels.txt")
LIMIT = 64 << 20
"""Bytes that may travel."""

GLIBC = ("manylinux1", "manylinux2014", *(f"manylinux_2_{n}" for n in (17, 24, 26, 27, 28, 31, 34)))
"""Platforms whose wheels run on Ubuntu 22.04 and later."""


def download_wheels(python: str, folder: Path) -> None:
    """Let pip fetch the wheels for a Python version (such as 3.12) on Linux, x86-64."""
    folder.mkdir(parents=True)
    platforms = [option for name in GLIBC for option in ("--platform", f"{name}_x86_64")]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--python-version",
         python, "--only-binary=:all:", *platforms, "--dest", str(folder), "--requirement",
         str(WHEELS)],
        check=True,
    )  # fmt: skip


def pack_text(file: Path) -> None:
    """Write upstream's package and metadata, without compiled files and headers, as tar.xz."""
    tree = pristine_text("cuda")
    with tarfile.open(file, "w:xz", preset=6) as archive:
        for path in sorted(tree.iterdir()):
            archive.add(path, path.name, filter=_travels)


def _travels(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    compiled = (".so", "/vllm-rs", ".pyc")  # where the wheel was unpacked as a whole, or was run
    return None if member.name.endswith(compiled) else member


def size_of(files: Iterable[Path]) -> int:
    """Return the bytes of all files."""
    return sum(path.stat().st_size for path in files)


def check_size(repository: int, packed: int) -> None:
    """Refuse what is too large.

    Raises:
        ValueError: says by how much.
    """
    total = repository + packed
    if total > LIMIT:
        raise ValueError(
            f"the repository ({repository / 2**20:.1f} MiB) and build/gpu/pack "
            f"({packed / 2**20:.1f} MiB) are more than {LIMIT >> 20} MiB together: shorten "
            f"{WHEELS.name}."
        )


def tracked_files() -> list[Path]:
    """Return the repository's own files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default="3.12", help="version of the GPU machine's Python")
    options = parser.parse_args()
    with replacing(FOLDER) as partial:
        download_wheels(options.python, partial / "wheels")
        (partial / "python.txt").write_text(f"{options.python}\n")
        pack_text(partial / "text.tar.xz")
        packed = sorted(path for path in partial.rglob("*") if path.is_file())
        check_size(size_of(tracked_files()), size_of(packed))
        for path in packed:
            print(f"{path.stat().st_size:>12,}  {path.relative_to(partial)}")
        print(f"{size_of(packed):>12,}  bytes in all, beside {size_of(tracked_files()):,}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
