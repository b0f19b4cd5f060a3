"""Whether a device has the bits of the specification, and of PyTorch where hf_compat promises them.

    python -m benchmarks.gpu.bits start|operations|shapes|draws [--device cuda] [--expected FILE]

start: the answers that an engine computes when it starts; operations: all committed digests;
shapes: those of an 8B Llama's shapes, whose digests the archive holds; draws: hf_compat's draws and
repetition penalty beside what Transformers gets of PyTorch on the device. Printed is JSON, before
and after each group: how many are equal, and the name of the group, since a kernel that hangs says
nothing any more. When all are counted, the CPU computes the first wrong groups, too, to see which
elements differ. The status is 1 if a bit differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import cases
from benchmarks.gpu.differences import difference
from benchmarks.gpu.draws import draws, penalties
from tests.kernels import portable_digests
from vllm.deterministic import self_check

SHAPES_FILE = Path(__file__).resolve().parents[2] / "build" / "gpu" / "site" / "shapes.json"
"""In the archive."""

MOST_EXPLAINED = 2
"""Groups; the CPU may take longer for one than the step has."""

Computed = dict[str, torch.Tensor]
Compute = Callable[[str], Computed]
"""Computes the results of a group on a device, by their names."""


class Count:
    """What was found until now.

    Attributes:
        values: what is printed.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"equal": 0, "of": 0, "differing": {}}
        self._to_explain: list[tuple[str, Computed, Compute]] = []

    def tell(self, **more: str) -> None:
        print(json.dumps({**self.values, **more}), flush=True)

    def add(self, name: str, wrong: Any) -> None:
        """Count a result; `wrong` says how it differs, and is None if it does not."""
        self.values["of"] += 1
        self.values["equal"] += wrong is None
        if wrong is not None:
            self.values["differing"][name] = wrong

    def compare(self, group: str, device: str, expected: dict[str, str], compute: Compute) -> None:
        """Compare a group's results with their digests.

        Raises:
            RuntimeError: after an error of CUDA's, which spoils all that follows in the process.
        """
        self.tell(during=group)
        try:
            found = compute(device)
            wrong = [name for name in expected if cases.digest(found[name]) != expected[name]]
            kept = {name: found[name].cpu() for name in wrong}
        except RuntimeError as error:
            self.add(f"{group}: all", f"{type(error).__name__}: {error}")
            if "CUDA error" in str(error):
                self.tell(during=group)
                raise
            return  # other groups may have their bits
        for name in expected:
            self.add(f"{group}: {name}", "other bits" if name in wrong else None)
        if kept and len(self._to_explain) < MOST_EXPLAINED:
            self._to_explain.append((group, kept, compute))

    def explain(self) -> None:
        """Say which elements of the first wrong groups differ from the CPU's."""
        for group, found, compute in self._to_explain:
            self.tell()
            there = compute("cpu")
            for name, wrong in found.items():
                differs = difference(wrong, there[name])
                equal_now = "other bits, which a second run has not"
                self.values["differing"][f"{group}: {name}"] = differs or equal_now


def start(count: Count, device: str) -> None:
    """A group's tensors have one digest together."""
    for group, expected in self_check.EXPECTED.items():
        count.compare(group, device, {"bytes": expected}, partial(_bytes_of, group))


def _bytes_of(group: str, device: str) -> Computed:
    ((_, tensors),) = self_check.answers(device, [group])
    return {"bytes": torch.cat([one.cpu().flatten().view(torch.uint8) for one in tensors])}


def operations(count: Count, device: str) -> None:
    """All results of ``tests/kernels/portable_digests.py`` that there are on a device."""
    expected: dict[str, str] = json.loads(portable_digests.EXPECTED.read_text())
    count.tell(during="operations")
    for name, found in portable_digests.digests(device).items():
        count.add(name, None if found == expected[name] else "other bits")


def shapes(count: Count, device: str, file: Path = SHAPES_FILE) -> None:
    """All groups of `cases`."""
    kept = json.loads(file.read_text())
    for group, compute in cases.groups(kept["model"]).items():
        count.compare(group, device, kept["digests"][group], partial(_computed, compute))


def _computed(compute: Callable[[self_check.Numbers], cases.Results], device: str) -> Computed:
    return dict(compute(self_check.Numbers(device)))


def torch_draws(count: Count, device: str) -> None:
    """Two sides on the same device."""
    for part in (draws, penalties):
        count.tell(during=part.__name__)
        for name, here, there in part(torch.device(device)):
            count.add(name, difference(here, there))


def main() -> None:
    parts: dict[str, Callable[..., None]] = {
        "start": start, "operations": operations, "shapes": shapes, "draws": torch_draws,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=parts)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--expected", type=Path, default=SHAPES_FILE, help="of shapes")
    options = parser.parse_args()
    count = Count()
    more = (options.expected,) if options.part == "shapes" else ()
    parts[options.part](count, options.device, *more)
    count.explain()
    count.tell()
    sys.exit(count.values["equal"] != count.values["of"])


if __name__ == "__main__":
    main()
