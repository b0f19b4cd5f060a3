"""The operations of deterministic mode on a device: the committed digests, and the CPU's elements.

    python -m benchmarks.gpu.digests self-check|operations --device cuda

prints how many are equal, as JSON; of the others, which elements differ from the CPU's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.differences import Comparison
from benchmarks.gpu.measurements import ROOT

TESTS = ROOT / "tests" / "kernels"


def compared(expected: Mapping[str, str], found: Mapping[str, str]) -> dict[str, Any]:
    """Return how many digests are equal, of how many, and the names of the others."""
    differing = [name for name, digest in expected.items() if found.get(name) != digest]
    return {
        "equal": len(expected) - len(differing),
        "of": len(expected),
        "differing": differing,
    }


def self_check(device: str) -> dict[str, Any]:
    """Compare the answers that an engine computes when it starts."""
    from vllm.deterministic.self_check import EXPECTED, answers, digests

    values, comparison = compared(EXPECTED, dict(digests(device))), Comparison()
    for name in values["differing"]:
        pairs = zip(answers(device, [name]), answers("cpu", [name]), strict=True)
        for (_, ours), (_, theirs) in pairs:
            for number, (here, there) in enumerate(zip(ours, theirs, strict=True)):
                comparison.add(f"{name}, {number}", here, there)
    return {**values, "differences": comparison.differences}


def operations(device: str) -> dict[str, Any]:
    """Compare all results of ``tests/kernels/portable_digests.py``."""
    sys.path.insert(0, str(TESTS))
    import portable_digests

    expected: dict[str, str] = json.loads(portable_digests.EXPECTED.read_text())
    return compared(expected, portable_digests.digests(device))


WHAT = {"self-check": self_check, "operations": operations}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    print(json.dumps(WHAT[options.what](options.device)))


if __name__ == "__main__":
    main()
