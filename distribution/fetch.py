"""Gets the upstream wheel: the pinned one, or the build of the same release that the user names."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from distribution.errors import DistributionError
from distribution.frontend import calling_folder
from distribution.other_wheel import check_other_wheel
from distribution.pins import Pin
from distribution.pip import reason, run_pip


def upstream_wheel(pin: Pin, cache: Path) -> Path:
    """Return the path of the wheel that `pin` names: given, cached, or downloaded by pip.

    VLLM_UPSTREAM_WHEEL may name a wheel file, or a folder that holds the pinned one. A file may be
    another build of the release, see `check_other_wheel`.

    Raises:
        DistributionError: the file is missing, is another one, or cannot be downloaded.
    """
    given = os.environ.get("VLLM_UPSTREAM_WHEEL")
    if given:
        wheel = _given_wheel(calling_folder() / Path(given).expanduser(), pin)
        if sha256_of(wheel) != pin.sha256:
            check_other_wheel(wheel, pin)
        return wheel
    cached = cache / pin.filename
    if not cached.exists():
        _download(pin, cached)
    return _checked(cached, pin)


def sha256_of(file: Path) -> str:
    """Return the hash of a file, 64 hex digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _given_wheel(given: Path, pin: Pin) -> Path:
    wheel = given / pin.filename if given.is_dir() else given
    if not wheel.is_file():
        raise DistributionError(
            f"VLLM_UPSTREAM_WHEEL names {wheel}, which does not exist: give the whole path of "
            f"{pin.filename}, or unset the variable to download it."
        )
    return wheel


def _checked(wheel: Path, pin: Pin) -> Path:
    actual = sha256_of(wheel)
    if actual != pin.sha256:
        raise DistributionError(
            f"{wheel} has sha256 {actual}, but upstream.toml pins {pin.sha256} for {pin.filename}: "
            "remove the file, or correct the pin if the release is meant to change."
        )
    return wheel


def _download(pin: Pin, destination: Path) -> None:
    """Let pip download the wheel and check its hash, then move it into place."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        requirement = Path(folder) / "requirement.txt"
        requirement.write_text(f"{pin.dist}=={pin.upstream_version} --hash=sha256:{pin.sha256}\n")
        done = run_pip("download", "--quiet", "--no-deps", "--only-binary=:all:",
                       "--require-hashes", "--dest", folder,
                       "--requirement", str(requirement))  # fmt: skip
        downloaded = Path(folder) / pin.filename
        if done.returncode != 0 or not downloaded.exists():
            raise DistributionError(
                f"pip could not download {pin.dist} {pin.upstream_version} ({reason(done)}): check "
                "the network and pip's index settings, or download the wheel elsewhere and set "
                "VLLM_UPSTREAM_WHEEL to its path."
            )
        shutil.move(downloaded, destination)
