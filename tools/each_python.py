"""Install this checkout with several Pythons, each from nothing, and run the demo and fast tests.

    python3 tools/each_python.py python3.11 python3.12 python3.13

Each gets a clone of the last commit and a virtual environment in a temporary folder, and one line
at the end. About ten minutes each on two cores, and 5 GB (10 GB with PyPI's torch) at a time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOALS = ("install", "demo", "test-fast")


def try_python(python: str, folder: Path) -> dict[str, str]:
    """Return what became of each goal with one Python, and how long it took."""
    clone = folder / "vllm"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    results: dict[str, str] = {}
    for goal in GOALS:
        start = time.monotonic()
        done = subprocess.run(["make", goal, f"PYTHON={python}"], cwd=clone)
        verdict = "ok" if done.returncode == 0 else f"FAILED ({done.returncode})"
        results[goal] = f"{verdict}, {time.monotonic() - start:.0f} s"
        if done.returncode != 0:
            break
    torch = [f"{clone}/.venv/bin/python", "-c", "import torch; print(torch.__version__)"]
    results["torch"] = subprocess.run(torch, capture_output=True, text=True).stdout.strip()
    return results


def main() -> int:
    pythons = sys.argv[1:]
    if not pythons:
        sys.exit(__doc__)
    lines = []
    for python in pythons:
        said = subprocess.run([python, "--version"], capture_output=True, text=True)
        if said.returncode != 0:
            sys.exit(f"{python} does not run: {said.stderr.strip()}")
        with tempfile.TemporaryDirectory(prefix="each-python-") as folder:
            results = try_python(python, Path(folder))
        lines.append((said.stdout.strip(), results))
    print()
    for version, results in lines:
        print(version, *(f"{name}: {result}" for name, result in results.items()), sep="  |  ")
    return 1 if any("FAILED" in r for _, results in lines for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
