"""The upstream release and its wheels, read from upstream.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("cpu", "cuda")


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
        torch: version that the wheel was built against.
        multimodal: requirements that only the extra [multimodal] installs.
    """

    target: str
    upstream_version: str
    version: str
    dist: str
    filename: str
    sha256: str
    torch: str
    multimodal: tuple[str, ...]


def load_pin(target: str, root: Path = ROOT) -> Pin:
    """Read the pin of `target` from ``upstream.toml`` in `root`."""
    table = tomllib.loads((root / "upstream.toml").read_text())
    wheel = table[target]
    local = f"cpu.hf{table['fork']}" if target == "cpu" else f"hf{table['fork']}"
    return Pin(
        target=target,
        upstream_version=table["version"],
        version=f"{table['version']}+{local}",
        dist=wheel["dist"],
        filename=wheel["filename"],
        sha256=wheel["sha256"],
        torch=wheel["torch"],
        multimodal=tuple(wheel["multimodal"]),
    )
