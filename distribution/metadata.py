"""What the installed distribution declares: upstream's metadata, adapted to the target."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement

from distribution.nvcc import PACKAGES as NVCC_PACKAGES
from distribution.pins import Pin

XFORMERS = ["xformers>=0.0.35"]  # for vllm/fork/xformers_backend.py

# For this project's own tests, checks and tools; the examples need nothing more than vLLM does,
# but name what they import.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1,<2"]
BULK = ["pyarrow>=20", "datasets>=4"]  # inputs of vllm/bulk
# Several machines. vLLM's metrics in Ray import Ray Serve; datatrove's own extra would bring other
# engines than this.
RAY = ["ray[data,serve]==2.60.*"]
DATATROVE = ["datatrove==0.10.*", "aiofiles", "aiosqlite", "orjson"]
# The example overrides a method that TRL keeps to itself.
RL = ["trl==1.16.*", "peft>=0.21"]
DEV = [
    "cmake>=3.26",
    "ninja",
    "pytest>=8",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    *XFORMERS,
    *BULK,
    *RAY,
    *DATATROVE,
    *RL,
    *DOCS,
    "ruff==0.14.*",
    "mypy==1.18.*",
    *NVCC_PACKAGES,
]
EVAL = ["lm_eval[hf]>=0.4.13", "matplotlib"]  # for benchmarks/lm_eval_parity.py, and plots
OWN = ["rich", "greenlet>=3.1,<4"]  # vllm/hf_model/lockstep.py
# Of what upstream requires: hf_compat follows one release of generate(), see
# vllm/fork/startup/transformers_release.py.
NARROWER = {"transformers": "transformers>=5.19"}


@dataclass(frozen=True)
class Metadata:
    """Arguments for setuptools.

    Attributes:
        requires: requirements of the distribution.
        extras: extra to its requirements.
        entry_points: group to its "name = module:object" lines.
    """

    requires: list[str]
    extras: dict[str, list[str]] = field(default_factory=dict)
    entry_points: dict[str, list[str]] = field(default_factory=dict)


def adapt_metadata(pristine: Path, pin: Pin) -> Metadata:
    """Read upstream's metadata from the unpacked wheel and adapt it to this distribution."""
    info = next(pristine.glob("*.dist-info"))
    message = message_from_bytes((info / "METADATA").read_bytes())
    requires: list[str] = [*OWN]
    torch: list[str] = []
    extras: dict[str, list[str]] = {name: [] for name in message.get_all("Provides-Extra") or []}
    extras |= {"dev": list(DEV), "eval": list(EVAL), "multimodal": [], "xformers": list(XFORMERS)}
    extras |= {"bulk": list(BULK), "ray": list(RAY), "datatrove": list(DATATROVE)}
    extras["rl"] = list(RL)
    extras |= {"compiled": []} if pin.compiled else {}
    for line in message.get_all("Requires-Dist") or []:
        requirement = Requirement(line)
        extra = _extra_of(requirement, extras)
        if extra is not None:
            extras[extra].append(line.partition(";")[0].strip())
        elif requirement.name in pin.multimodal:
            extras["multimodal"].append(line)
        elif requirement.name in pin.compiled:
            extras["compiled"].append(line)
        elif requirement.url:
            continue  # vLLM's own CPU wheel names Triton-CPU by address; its C++ stand-ins serve
        elif requirement.name == "torch":
            torch = [f"torch{pin.torch}"]  # whatever its build, see torch_source.py
        else:
            requires.append(line)
            if requirement.name in NARROWER:
                requires.append(NARROWER[requirement.name])
    return Metadata([*torch, *requires], extras, dict(_entry_points(info / "entry_points.txt")))


def _extra_of(requirement: Requirement, extras: dict[str, list[str]]) -> str | None:
    """Return the extra whose marker a requirement has, if any."""
    marker: Marker | None = requirement.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return None
    return next((name for name in extras if marker.evaluate({"extra": name})), None)


def _entry_points(file: Path) -> Iterator[tuple[str, list[str]]]:
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(file.read_text())
    for group in parser.sections():
        yield group, [f"{name} = {value}" for name, value in parser.items(group)]
