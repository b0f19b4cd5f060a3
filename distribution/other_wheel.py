"""A wheel of upstream's release that is not the pinned file: what it must share with that.

Compiled files cannot be compared between two builds; the same ones must be there. Of the package
everything else must be, to the last byte, what the pinned wheel holds or what vLLM's own source
release on PyPI holds; and requirements and entry points must be the pinned ones.
"""

from __future__ import annotations

import hashlib
import zipfile
from email import message_from_bytes
from email.message import Message
from fnmatch import fnmatch
from pathlib import Path

from distribution.errors import DistributionError
from distribution.pins import Pin

COMPILED = ("*.so", "vllm-rs")
"""Names of a wheel's binaries."""
RUST_SERVER = "vllm-rs"
"""A compiled file that a build may have or not."""
WRITTEN_HERE = "vllm/_version.py"
PACKAGE = "vllm/"


def check_other_wheel(wheel: Path, pin: Pin) -> None:
    """Stop unless `wheel` is another build of the release that `pin` names.

    Checked are version, requirements and entry points, that it holds the compiled files that the
    pinned one holds and nothing beside the package, and a digest of the package's other files.

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
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if strange := [name for name in names if not _is_expected(name)]:
        return f"it holds {strange[0]}, which is neither in the package nor in its metadata"
    if len(set(names)) != len(names):
        return "it holds a file twice"
    described = [name for name in names if name.endswith("/METADATA")]
    if len(described) != 1:
        return "it holds no metadata of a package"
    metadata = message_from_bytes(archive.read(described[0]))
    if str(metadata["Version"]).partition("+")[0] != pin.upstream_version:
        return f"it has version {metadata['Version']}, not {pin.upstream_version}"
    required = _requirements(metadata)
    if f"torch{pin.torch}" not in {line.partition(";")[0].partition("+")[0] for line in required}:
        return f"it was not compiled for torch{pin.torch}"
    compiled = {name.removeprefix(PACKAGE) for name in names if is_compiled(name)}
    if different := sorted((compiled ^ set(pin.compiled_files)) - {RUST_SERVER}):
        return f"{different[0]} is in one of the two only"
    if (digest := text_digest(archive)) not in pin.text_sha256:
        return f"its text has the digest {digest}, which is not among those of upstream.toml"
    if (digest := metadata_digest(archive)) != pin.metadata_sha256:
        return f"its requirements and entry points have the digest {digest}, another one"
    return ""


def _is_expected(name: str) -> bool:
    """Return whether a file is the package's or its metadata's, by a name without tricks."""
    first, *others = name.split("/")
    is_plain = not {"", ".", ".."} & {first, *others} and "\\" not in name
    return is_plain and bool(others) and (f"{first}/" == PACKAGE or first.endswith(".dist-info"))


def metadata_digest(archive: zipfile.ZipFile) -> str:
    """Return a hash of what a wheel requires and starts: entry points and requirements.

    Left out are extras, torch, and what is required by address, which this distribution leaves
    out as well.
    """
    info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(info))
    lines = [
        line for line in _requirements(metadata) if not line.startswith(("torch==", "triton@"))
    ]
    entry_points = info.replace("METADATA", "entry_points.txt")
    if entry_points in archive.namelist():
        lines += archive.read(entry_points).decode().split("\n")
    text = "\n".join(sorted(filter(None, (line.replace(" ", "") for line in lines))))
    return hashlib.sha256(text.encode()).hexdigest()


def _requirements(metadata: Message) -> list[str]:
    """Return the requirements without blanks, but for those of extras."""
    lines = metadata.get_all("Requires-Dist", [])
    return [str(line).replace(" ", "") for line in lines if "extra ==" not in line]


def is_compiled(path: str) -> bool:
    """Return whether a file of a wheel is one of its binaries."""
    return any(fnmatch(path.rpartition("/")[2], pattern) for pattern in COMPILED)
