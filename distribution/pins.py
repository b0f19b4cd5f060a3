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
        torch: versions that it runs with, as a requirement's ("==2.13.0").
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
    torch: str
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
        torch=wanted["torch"],
        multimodal=tuple(wanted["multimodal"]),
        compiled=tuple(wanted.get("compiled", ())),
        kernels=kernels,
    )
