"""Kernels' sources with a fault in them, for tests that say what the emulation must find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.kernels.machine_code import CSRC

Fault = tuple[str, str, str]
"""The file below csrc/cuda, its right text, which stands there once, and the wrong one."""


def copy_sources(paths: Iterable[Path], folder: Path, fault: Fault | None) -> None:
    """Copy sources of csrc/cuda to the same places below `folder`, with a fault or without."""
    is_faulty = fault is None
    for path in paths:
        place = path.relative_to(CSRC)
        text = path.read_text()
        if fault is not None and place == Path("cuda", fault[0]):
            text = text.replace(*fault[1:])
            is_faulty = True
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    assert is_faulty, f"{fault} is in no file that was copied"


def misplaced(faults: Mapping[str, Fault]) -> list[str]:
    """Return the faults whose right text does not stand in its file exactly once."""
    return [
        name
        for name, (file, right, _) in faults.items()
        if (CSRC / "cuda" / file).read_text().count(right) != 1
    ]
