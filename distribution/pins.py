"""The upstream release and its wheels, read from upstream.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("cpu", "cuda")
KERNELS = ("all", "source")
"""Upstream's compiled files and this project's, or the latter alone."""


@dataclass(frozen=True)
class Pin:
    """One target's upstream wheel.

    Attributes:
        target: "cpu" or "cuda".
        upstream_version: of the wheel.
        version: of this distribution, PEP 440 (0.32.0+cpu.hf1, 0.32.0+hf1); vLLM recognises a
            CPU build by the "cpu" in it.
        dist: name of the upstream distribution on the package index.
        filename: of the wheel.
        sha256: of the wheel, 64 hex digits.
        text_sha256: digests of its text and of others that are as good, see `text_digest`.
        metadata_sha256: of its requirements and entry points, see `metadata_digest`.
        compiled_files: of the package, which any build of it must have, and no others.
        torch: versions that it runs with, as a requirement's ("==2.13.0").
        torch_index: of torch's builds for CPUs; None if those for CUDA are wanted.
        multimodal: requirements that only the extra [multimodal] installs.
        compiled: requirements that only the extra [compiled] installs.
        kernels: "all" or "source".
    """

    target: str
    upstream_version: str
    version: str
    dist: str
    filename: str
    sha256: str
    text_sha256: tuple[str, ...]
    metadata_sha256: str
    compiled_files: tuple[str, ...]
    torch: str
    torch_index: str | None
    multimodal: tuple[str, ...]
    compiled: tuple[str, ...]
    kernels: str


def load_pin(target: str, root: Path = ROOT, kernels: str = "all") -> Pin:
    """Read the pin of `target` from ``upstream.toml`` in `root`."""
    table = tomllib.loads((root / "upstream.toml").read_text())
    wheel = table[target]
    wanted = wheel if kernels == "all" else wheel[kernels]
    local = f"cpu.hf{table['fork']}" if target == "cpu" else f"hf{table['fork']}"
    return Pin(
        target=target,
        upstream_version=table["version"],
        version=f"{table['version']}+{local}",
        dist=wheel["dist"],
        filename=wheel["filename"],
        sha256=wheel["sha256"],
        text_sha256=tuple(wheel["text_sha256"]),
        metadata_sha256=wheel["metadata_sha256"],
        compiled_files=tuple(wheel["compiled_files"]),
        torch=wanted["torch"],
        torch_index=wheel.get("torch_index"),
        multimodal=tuple(wanted["multimodal"]),
        compiled=tuple(wanted.get("compiled", ())),
        kernels=kernels,
    )
