"""The one archive that a GPU machine without network needs beside this repository.

    python3.12 -m venv build/gpu/image
    build/gpu/image/bin/pip install -r benchmarks/gpu/image.txt
    build/gpu/image/bin/python -m benchmarks.gpu.pack [--architectures 90a-real]

Run with a Python that has what the GPU machine's has (image.txt), with nvcc and a network. It
writes build/gpu/pack/site.tar.xz: the wheels of wheels.txt, unpacked; this distribution with its
library, prebuilt for CUDA (VLLM_KERNELS=source); bytecode of all; and the CPU's digests of an 8B
Llama's shapes. What travels, the repository included, is refused above 60 MiB.

With --unpack, on the GPU machine, it unpacks the archive to build/gpu/site, unless it was made of
other sources than those beside it.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path

from distribution.errors import DistributionError
from distribution.kernels import LIBRARY, build_library
from distribution.pins import ROOT
from distribution.pristine import one_at_a_time, pristine_text, replacing
from distribution.tree import assembled_tree

FOLDER = ROOT / "build" / "gpu"
SITE = FOLDER / "site"
ARCHIVE = FOLDER / "pack" / "site.tar.xz"
WHEELS = Path(__file__).with_name("wheels.txt")
SOURCES = (
    *("vllm", "csrc", "cmake", "patches", "CMakeLists.txt", "upstream.toml"),
    *("benchmarks/gpu/cases.py", "benchmarks/gpu/shapes.py", "benchmarks/gpu/wheels.txt"),
)
"""What the archive is made of, in the repository."""

SOURCES_FILE = "sources.txt"
"""Their digest, in the archive and beside it."""

LIMIT = 60 << 20
"""Bytes that may travel."""

NEEDED = (
    *("PIL", "aiohttp", "cloudpickle", "cpuinfo", "cv2", "einops", "google.protobuf", "numba"),
    *("prometheus_client", "psutil", "requests", "rich", "sentencepiece", "tiktoken", "torch"),
    *("transformers", "triton"),
)
"""Modules that the GPU machine's Python must have: see wheels.txt."""

GLIBC = ("manylinux1", "manylinux2014", *(f"manylinux_2_{n}" for n in (17, 24, 26, 27, 28, 31, 34)))
"""Platforms whose wheels run on Ubuntu 22.04 and later."""


def install_wheels(folder: Path) -> None:
    """Let pip unpack the wheels for this Python's version on Linux, x86-64."""
    platforms = [option for name in GLIBC for option in ("--platform", f"{name}_x86_64")]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--no-compile", "--only-binary=:all:", *platforms, "--target", str(folder),
         "--requirement", str(WHEELS)],
        check=True,
    )  # fmt: skip


def add_distribution(folder: Path, architectures: str) -> None:
    """Add the assembled package, its metadata and its stripped library."""
    os.environ |= {"CUDAARCHS": architectures, "VLLM_KERNELS": "source"}
    with one_at_a_time("cuda"):
        tree = assembled_tree("cuda", link=False, kernels="source")
        library = build_library("cuda")
    shutil.copytree(tree / "vllm", folder / "vllm")
    for metadata in pristine_text("cuda").glob("*.dist-info"):  # vLLM asks for its own version
        shutil.copytree(metadata, folder / metadata.name)
    target = folder / "vllm" / LIBRARY
    subprocess.run(["strip", "--strip-unneeded", "-o", str(target), str(library)], check=True)


def add_digests(folder: Path) -> None:
    """Write shapes.json, computed by the CPU kernels of the same library."""
    code = (
        "import json; from benchmarks.gpu import cases; "
        "print(json.dumps({'model': '8B', 'digests': cases.digests('8B')}))"
    )
    variables = {
        "PYTHONPATH": f"{folder}:{ROOT}",
        "VLLM_FORK_LIBRARY": str(folder / "vllm" / LIBRARY),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | variables, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    (folder / "shapes.json").write_text(done.stdout.splitlines()[-1] + "\n")


def compile_all(folder: Path) -> None:
    """Write bytecode that is taken whatever the times of the files: they change on the way."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(folder, quiet=2, workers=0, invalidation_mode=mode)


def write_archive(folder: Path) -> None:
    """Pack a folder's files, those of a kind side by side, which makes them smaller."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files.sort(key=lambda path: path.suffix)
    with replacing(ARCHIVE.parent) as partial, tarfile.open(partial / ARCHIVE.name, "w:xz") as tar:
        for path in files:
            tar.add(path, path.relative_to(folder))
    (ARCHIVE.parent / "python.txt").write_text(version())
    shutil.copy2(folder / SOURCES_FILE, ARCHIVE.parent)


def sources_digest(root: Path = ROOT) -> str:
    """Return a digest of the names and bytes of `SOURCES`; there may be no git."""
    digest = hashlib.sha256()
    for name in SOURCES:
        place = root / name
        files = [place] if place.is_file() else place.rglob("*")
        for path in sorted(path for path in files if path.is_file()):
            if path.suffix != ".pyc":
                contents = path.read_bytes()
                digest.update(f"{path.relative_to(root)} {len(contents)}\n".encode() + contents)
    return digest.hexdigest()


def version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def unpack() -> None:
    """Unpack the archive, unless it has been.

    Raises:
        ValueError: it is not there, or for another Python or of other sources, or this Python lacks
            a package.
    """
    if not ARCHIVE.exists():
        raise ValueError(
            f"{ARCHIVE.relative_to(ROOT)} is not there: make it, see benchmarks.gpu.pack."
        )
    packed = (ARCHIVE.parent / "python.txt").read_text()
    if packed != version():
        raise ValueError(
            f"the archive is for Python {packed}, and this is {version()}: make it with such a "
            "Python, or name another by PYTHON."
        )
    sources = sources_digest()
    made_of = ARCHIVE.parent / SOURCES_FILE
    if not made_of.exists() or made_of.read_text() != sources:
        raise ValueError(
            f"the archive was made of other sources than this repository's ({', '.join(SOURCES)}): "
            "make it again, see benchmarks.gpu.pack."
        )
    if missing := [name for name in NEEDED if not _has(name)]:
        raise ValueError(
            f"{sys.executable} has not {', '.join(missing)}, which the archive leaves to the "
            "machine: install these, or name another Python by PYTHON."
        )
    kept = SITE / SOURCES_FILE
    if kept.exists() and kept.read_text() == sources:
        return
    with replacing(SITE) as partial, tarfile.open(ARCHIVE) as tar:
        tar.extractall(partial, filter="fully_trusted")


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def size_of(files: Iterable[Path]) -> int:
    """Return the bytes of all files."""
    return sum(path.stat().st_size for path in files if path.is_file())


def check_size(repository: int, packed: int) -> None:
    """Refuse what is too large.

    Raises:
        ValueError: says by how much.
    """
    if repository + packed > LIMIT:
        raise ValueError(
            f"the repository ({repository / 2**20:.1f} MiB) and the archive "
            f"({packed / 2**20:.1f} MiB) are more than {LIMIT >> 20} MiB together: leave an "
            f"architecture out, or shorten {WHEELS.name}."
        )


def tracked_files() -> list[Path]:
    """Return the repository's own files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def pack(architectures: str) -> None:
    """Make the archive, and say what each step took.

    Raises:
        ValueError: it is too large.
        DistributionError: the distribution cannot be assembled or built.
        subprocess.CalledProcessError: pip, strip or the digests failed.
    """
    sources = sources_digest()  # of what is read below, should it be edited meanwhile
    steps = {
        "wheels": install_wheels,
        "distribution": lambda folder: add_distribution(folder, architectures),
        "digests": add_digests,
        "sources": lambda folder: (folder / SOURCES_FILE).write_text(sources),
        "bytecode": compile_all,
        "archive": write_archive,
    }
    with replacing(FOLDER / "packing") as folder:
        for name, step in steps.items():
            begin = time.perf_counter()
            step(folder)
            print(f"{time.perf_counter() - begin:>7.1f} s  {name}", flush=True)
    repository, packed = size_of(tracked_files()), ARCHIVE.stat().st_size
    print(f"{packed:,} bytes, beside {repository:,} of the repository")
    check_size(repository, packed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--architectures", default="90a-real", help="as CMake names them; with ;")
    parser.add_argument("--unpack", action="store_true", help="on the GPU machine")
    options = parser.parse_args()
    unpack() if options.unpack else pack(options.architectures)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, DistributionError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
