"""Where torch comes from, if the environment has none that fits.

1. What pip is configured to know, or was told on its command line, if that has a build for CPUs.
2. PyTorch's own index of builds for CPUs, which PyPI lacks: upstream.toml has its address, and
   VLLM_PYTORCH_INDEX_URL names a mirror.
3. What pip found in the first place: PyPI's build is CUDA's, and serves CPUs as well.

A build for CUDA takes what pip finds.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distribution.errors import DistributionError
from distribution.frontend import Frontend, calling_frontend, tell_user
from distribution.pins import Pin
from distribution.pip import reason, run_pip

NOTE = "vllm: note:"
"""Begins what is shown to the user while pip hides everything else."""

VARIABLE = "VLLM_PYTORCH_INDEX_URL"
PATIENCE = ("--timeout", "15", "--retries", "1")
"""For an index that the user did not ask for; pip's own would wait for minutes."""
CUDA_BUILD_SIZE = "2.7 GB to download and 5 GB on disk, where a build for CPUs takes 0.2 and 0.8"


@dataclass(frozen=True)
class TorchSource:
    """The torch that pip is to install.

    Attributes:
        requirement: for pip: "torch==2.13.0+cpu", "torch==2.13.0" in any build, or "torch @ URL"
            for what pip cannot find.
        options: of pip, with which it finds it.
        is_cuda_build: it is not a build for CPUs.
    """

    requirement: str
    options: tuple[str, ...] = ()
    is_cuda_build: bool = False

    def save(self, file: Path) -> None:
        """Keep this for the later steps of one installation, which are other processes."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)  # addresses of indexes may hold passwords
        file.write_text(json.dumps(asdict(self)))


def load_source(file: Path) -> TorchSource | None:
    """Return what `TorchSource.save` kept, if anything."""
    if not file.exists():
        return None
    fields = json.loads(file.read_text())
    return TorchSource(**{**fields, "options": tuple(fields["options"])})


def find_torch(pin: Pin, frontend: Frontend | None = None) -> TorchSource:
    """Return where the torch of `pin` is to come from; asks pip, and says if it is a large one.

    Raises:
        DistributionError: there is none; says both ways out.
    """
    frontend = frontend or calling_frontend()
    plain = TorchSource(f"torch{pin.torch}", frontend.options, is_cuda_build=True)
    if pin.torch_index is None:
        return plain
    cpu_build = f"torch{pin.torch}+cpu"
    if _look_up(cpu_build, frontend.options).url:
        return TorchSource(cpu_build, frontend.options)
    known = _look_up(plain.requirement, frontend.options)
    if "+" in known.version:  # a label that only a chosen index has
        return plain
    index = os.environ.get(VARIABLE) or pin.torch_index
    if "://" not in index and not Path(index).exists():
        raise DistributionError(
            f"{VARIABLE}={index} is not the address of an index: give one such as "
            f"{pin.torch_index}, or unset the variable."
        )
    at_pytorch = _look_up(cpu_build, (*frontend.options, "--index-url", index, *PATIENCE))
    if at_pytorch.url:
        return TorchSource(f"torch @ {_with_login_of(index, at_pytorch.url)}")
    if known.url:
        tell_user(
            f"{NOTE} torch {known.version} is PyPI's build for CUDA, which serves CPUs as well: "
            f"{CUDA_BUILD_SIZE}. PyTorch's index of builds for CPUs ({_without_login(index)}) gave "
            f"none; {VARIABLE} names a mirror."
        )
    elif frontend.is_pip_alone:
        raise DistributionError(
            f"No torch {pin.torch.strip('=')} was found for this Python, neither by pip "
            f"({known.reason}) nor in PyTorch's index of builds for CPUs "
            f"({_without_login(index)}): name an index or a folder that has it with "
            f"--extra-index-url, --find-links or {VARIABLE}, or install it into this environment "
            "first."
        )
    return plain


@dataclass(frozen=True)
class _Answer:
    """What pip would install: version and address, or the reason why there is nothing."""

    version: str = ""
    url: str = ""
    reason: str = ""


def _look_up(requirement: str, options: Sequence[str]) -> _Answer:
    """Return what pip would install for `requirement`, which it may have to download to tell."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = run_pip("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet",
                       "--report", str(report), *options, requirement)  # fmt: skip
        if done.returncode != 0 or not report.exists():
            return _Answer(reason=reason(done))
        (item,) = json.loads(report.read_text())["install"]
    return _Answer(item["metadata"]["version"], _url_with_hash(item["download_info"]))


def _url_with_hash(download: dict[str, Any]) -> str:
    sha256 = download.get("archive_info", {}).get("hashes", {}).get("sha256")
    return f"{download['url']}#sha256={sha256}" if sha256 else str(download["url"])


def _with_login_of(index: str, url: str) -> str:
    """Return `url` with the login of the index that it came from, which pip leaves out."""
    login, at, host = urlsplit(index).netloc.rpartition("@")
    parts = urlsplit(url)
    return parts._replace(netloc=login + at + host).geturl() if parts.netloc == host else url


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
