"""A wheel of upstream's release that is not the pinned file: what it must share with that.

Compiled files cannot be compared between two builds. Everything else can: it must be, to the last
byte, what the pinned wheel holds, or what vLLM's own source release on PyPI holds.
"""

from __future__ import annotations

import hashlib
import zipfile
from email import message_from_bytes
from fnmatch import fnmatch
from pathlib import Path

from distribution.errors import DistributionError
from distribution.pins import Pin

COMPILED = ("*.so", "vllm-rs")
"""Names of a wheel's binaries."""
WRITTEN_HERE = "vllm/_version.py"
PACKAGE = "vllm/"


def check_other_wheel(wheel: Path, pin: Pin) -> None:
    """Stop unless `wheel` is another build of the release that `pin` names.

    Checked are the version and the release of torch that it declares, that it holds each compiled
    file that the pinned one holds, and a digest of all its other files.

    Raises:
        DistributionError: says what is not equal.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            problem = _difference(archive, pin)
    except zipfile.BadZipFile as error:
        problem = f"it is no wheel at all ({error})"
    if problem:
        raise DistributionError(
            f"{wheel} is not the wheel that upstream.toml pins for {pin.filename}, and no other "
            f"build of the same release either: {problem}. Remove it, or unset "
            "VLLM_UPSTREAM_WHEEL to download the pinned one."
        )


def text_digest(archive: zipfile.ZipFile) -> str:
    """Return a hash of the package's files that are not compiled.

    It is what ``find vllm -type f | LC_ALL=C sort | xargs sha256sum | sha256sum`` prints in the
    unpacked wheel, without binaries and ``vllm/_version.py``, which the installation writes.
    """
    lines = (
        f"{hashlib.sha256(archive.read(name)).hexdigest()}  {name}\n"
        for name in sorted(archive.namelist())
        if name.startswith(PACKAGE) and not name.endswith("/")
        if name != WRITTEN_HERE and not is_compiled(name)
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _difference(archive: zipfile.ZipFile, pin: Pin) -> str:
    """Return what is not equal, or nothing."""
    names = set(archive.namelist())
    described = [name for name in names if name.endswith(".dist-info/METADATA")]
    if len(described) != 1:
        return "it holds no metadata of a package"
    metadata = message_from_bytes(archive.read(described[0]))
    if str(metadata["Version"]).partition("+")[0] != pin.upstream_version:
        return f"it has version {metadata['Version']}, not {pin.upstream_version}"
    if not any(_asks_for_torch(line, pin) for line in metadata.get_all("Requires-Dist", [])):
        return f"it was not compiled for torch{pin.torch}"
    if missing := [name for name in pin.compiled_files if PACKAGE + name not in names]:
        return f"it lacks {missing[0]}"
    if (digest := text_digest(archive)) not in pin.text_sha256:
        return f"its text has the digest {digest}, which is not among those of upstream.toml"
    return ""


def _asks_for_torch(requirement: str, pin: Pin) -> bool:
    wanted = f"torch{pin.torch}"
    return requirement.partition(";")[0].replace(" ", "").partition("+")[0] == wanted


def is_compiled(path: str) -> bool:
    """Return whether a file of a wheel is one of its binaries."""
    return any(fnmatch(path.rpartition("/")[2], pattern) for pattern in COMPILED)
