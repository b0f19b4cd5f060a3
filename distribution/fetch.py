"""Gets the upstream wheel, and nothing but the pinned one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from distribution.errors import DistributionError
from distribution.pins import Pin


def upstream_wheel(pin: Pin, cache: Path) -> Path:
    """Return the path of the wheel that `pin` names: given, cached, or downloaded by pip.

    VLLM_UPSTREAM_WHEEL may name a wheel file, or a folder that holds it.

    Raises:
        DistributionError: the file is missing, has another hash, or cannot be downloaded.
    """
    given = os.environ.get("VLLM_UPSTREAM_WHEEL")
    if given:
        return _checked(_given_wheel(Path(given), pin), pin)
    cached = cache / pin.filename
    if not cached.exists():
        _download(pin, cached)
    return _checked(cached, pin)


def _given_wheel(given: Path, pin: Pin) -> Path:
    wheel = given / pin.filename if given.is_dir() else given
    if not wheel.is_file():
        raise DistributionError(
            f"VLLM_UPSTREAM_WHEEL names {wheel}, which does not exist: give the path of "
            f"{pin.filename}, or unset the variable to download it."
        )
    return wheel


def _checked(wheel: Path, pin: Pin) -> Path:
    with wheel.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
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
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", folder,
               "--requirement", str(requirement)]  # fmt: skip
        done = subprocess.run(pip, capture_output=True, text=True)
        downloaded = Path(folder) / pin.filename
        if done.returncode != 0 or not downloaded.exists():
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = lines[-1].removeprefix("ERROR: ") if lines else "pip gave no reason"
            raise DistributionError(
                f"pip could not download {pin.dist} {pin.upstream_version} ({reason}): check the "
                "network and pip's index settings, or download the wheel elsewhere and set "
                "VLLM_UPSTREAM_WHEEL to its path."
            )
        shutil.move(downloaded, destination)
