"""A small repository with a small upstream wheel, in a folder of the test's.

The code under test is the real one: it takes the repository's root as an argument.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from distribution.pristine import build_folder
from distribution.series import FIELDS, Hunk, Patch, anchor_of, format_patch

VERSION = "1.2.0"
WHEEL = f"upstream_cpu-{VERSION}-py3-none-any.whl"
ENGINE = "vllm/engine.py"
TORCH_INDEX = "http://127.0.0.1:9/simple"  # the discard port: connections are refused
UPSTREAM: Mapping[str, str] = {
    "vllm/__init__.py": "from .engine import run\n",
    "vllm/_version.py": "version = '1.2.0'\n",
    "vllm/_C.abi3.so": "binary\n",
    "vllm/vllm-rs": "binary\n",
    ENGINE: "def run():\n    first()\n    second()\n    return third()\n",
    "vllm/models/__init__.py": "",
    "vllm/models/llama.py": "layers = 2\nheads = 4\n",
}
OVERLAY: Mapping[str, str] = {
    "vllm/fork/__init__.py": "own = 1\n",
    "vllm/fork/deep/inner.py": "own = 2\n",
    "vllm/fork/source_kernels/stand_ins/_C.py": "own = 4\n",
    "vllm/fork/source_kernels/stand_ins/models/_kernels.py": "own = 5\n",
    "vllm/own/added.py": "own = 3\n",
}


def make_patch(
    name: str,
    insertions: Mapping[str, Mapping[int, Sequence[str]]],
    upstream: Mapping[str, str] = UPSTREAM,
) -> Patch:
    """Return a patch that inserts lines, given per file and number of the line before them."""
    return Patch(
        name,
        {field: f"The {field.lower()} of {name}." for field in FIELDS},
        {
            path: tuple(
                Hunk(after, anchor_of(upstream[path].split("\n"), after), tuple(lines))
                for after, lines in places.items()
            )
            for path, places in insertions.items()
        },
    )


FIRST = make_patch("hooks/first.patch", {ENGINE: {1: ["    # one", "    one()"]}})
SECOND = make_patch(
    "upstream-fixes/second.patch",
    {"vllm/__init__.py": {0: ["#"]}, ENGINE: {1: ["    two()"], 3: ["    late()"]}},
)
TEXT_SHA256 = hashlib.sha256(
    "".join(
        f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n"
        for name, text in sorted(UPSTREAM.items())
        if name not in ("vllm/_version.py", "vllm/_C.abi3.so", "vllm/vllm-rs")
    ).encode()
).hexdigest()
METADATA_SHA256 = hashlib.sha256(b"[console_scripts]\nvllm=vllm.engine:run").hexdigest()
PATCHED: Mapping[str, str] = {
    **UPSTREAM,
    ENGINE: (
        "def run():\n    # one\n    one()\n    two()\n    first()\n    second()\n    late()\n"
        "    return third()\n"
    ),
    "vllm/__init__.py": "#\nfrom .engine import run\n",
}
"""Upstream's files with both patches."""


def make_repository(
    root: Path,
    upstream: Mapping[str, str] = UPSTREAM,
    overlay: Mapping[str, str] = OVERLAY,
    patches: Sequence[Patch] = (FIRST, SECOND),
) -> Path:
    """Write a repository whose CPU wheel is already downloaded, and return its root."""
    write_files(root, overlay)
    write_series(root, patches)
    sha256 = write_wheel(build_folder("cpu", root) / "wheels" / WHEEL, upstream)
    write_pin(root, sha256)
    return root


def write_pin(
    root: Path, sha256: str, fork: int = 1, text_sha256: Sequence[str] = (TEXT_SHA256,)
) -> None:
    """Write ``upstream.toml``."""
    (root / "upstream.toml").write_text(
        f'version = "{VERSION}"\nfork = {fork}\n[cpu]\ndist = "upstream-cpu"\n'
        f'filename = "{WHEEL}"\nsha256 = "{sha256}"\ntext_sha256 = {list(text_sha256)}\n'
        f'metadata_sha256 = "{METADATA_SHA256}"\n'
        'compiled_files = ["_C.abi3.so"]\ntorch = "==2.0"\nmultimodal = []\n'
        f'torch_index = "{TORCH_INDEX}"\n'
        '[cpu.source]\ntorch = ">=1.9"\nmultimodal = ["vision"]\ncompiled = ["kernels"]\n'
    )


def write_series(root: Path, patches: Sequence[Patch]) -> None:
    """Replace the repository's patches."""
    folder = root / "patches"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.rglob("*.patch"):
        old.unlink()
    for patch in patches:
        (folder / patch.name).parent.mkdir(exist_ok=True)
        (folder / patch.name).write_text(format_patch(patch))
    (folder / "series").write_text("".join(f"{patch.name}\n" for patch in patches))


def write_wheel(
    wheel: Path,
    files: Mapping[str, str],
    requires: str = 'Requires-Dist: torch==2.0+cpu; platform_machine == "x86_64"\n',
    entry_points: str = "[console_scripts]\nvllm = vllm.engine:run\n",
) -> str:
    """Write a wheel that pip accepts, and return its hash."""
    dist, version = wheel.name.split("-")[:2]
    info = f"{dist}-{version}.dist-info"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n{requires}",
        f"{info}/entry_points.txt": entry_points,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files with the folders that they are in, and return `folder`."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


def write_program(folder: Path, name: str, script: str = "exit 0") -> Path:
    """Write an executable."""
    write_files(folder, {name: f"#!/bin/sh\n{script}\n"})
    (folder / name).chmod(0o755)
    return folder / name


def contents(folder: Path) -> dict[str, str]:
    """Return the text of every file under `folder`, those behind links included; no bytecode."""
    return {
        str((Path(place) / name).relative_to(folder)): (Path(place) / name).read_bytes().decode()
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if not name.endswith(".pyc")
    }


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of change of everything under `folder`: equal if nothing was done."""
    found = {str(path): path.lstat() for path in [folder, *folder.rglob("*")]}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}
