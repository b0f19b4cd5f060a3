"""The operations of deterministic mode on a device: the committed digests, and the CPU's elements.

    python -m benchmarks.gpu.digests self-check|operations --device cuda

prints how many are equal, as JSON; of the others, which elements differ from the CPU's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.differences import Comparison


def compared(expected: Mapping[str, str], found: Mapping[str, str]) -> dict[str, Any]:
    """Return how many digests are equal, of how many, and the names of the others."""
    differing = [name for name, digest in expected.items() if found.get(name) != digest]
    return {
        "equal": len(expected) - len(differing),
        "of": len(expected),
        "differing": differing,
    }


def self_check(device: str) -> Iterator[dict[str, Any]]:
    """Compare the answers that an engine computes when it starts, and yield what was found.

    Before each group its name is told: a kernel that hangs says nothing any more.
    """
    from vllm.deterministic.self_check import EXPECTED, answers, digests

    found: dict[str, str] = {}
    tried: list[str] = []
    comparison = Comparison()
    for name, expected in EXPECTED.items():
        until_now = compared({known: EXPECTED[known] for known in tried}, found)
        tried.append(name)
        yield {**until_now, "differences": comparison.differences, "during": name}
        try:
            found |= digests(device, [name])
            if found[name] != expected:
                (_, ours), (_, theirs) = (*answers(device, [name]), *answers("cpu", [name]))
                for number, (here, there) in enumerate(zip(ours, theirs, strict=True)):
                    comparison.add(f"{name}, {number}", here, there)
        except RuntimeError as error:  # other groups may have their bits
            comparison.fail(name, error)
        yield {**compared(EXPECTED, found), "differences": comparison.differences}


def operations(device: str) -> Iterator[dict[str, Any]]:
    """Compare all results of ``tests/kernels/portable_digests.py``."""
    from tests.kernels import portable_digests

    expected: dict[str, str] = json.loads(portable_digests.EXPECTED.read_text())
    yield compared(expected, portable_digests.digests(device))


WHAT = {"self-check": self_check, "operations": operations}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for values in WHAT[options.what](options.device):
        print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
