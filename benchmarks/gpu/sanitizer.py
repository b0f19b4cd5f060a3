"""NVIDIA's compute-sanitizer over the operations that an engine computes when it starts.

    python -m benchmarks.gpu.sanitizer memcheck|racecheck --device cuda

Memcheck finds accesses beside memory, racecheck those of shared memory that nothing orders, which
neither a digest nor an emulation is sure to show. Printed are how many digests are equal under it,
and how many errors there are, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.measurements import ROOT, last_values

PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
"""Folders where it is looked for if it is not on the PATH."""

MOST_REPORTS = 100
"""That it prints."""

OWN = "vllm_fork"
"""In the names of the kernels that are looked at: PyTorch's would take most of the time."""

_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)", re.MULTILINE)


def sanitizer() -> str:
    """Return the program.

    Raises:
        FileNotFoundError: it is not there.
    """
    found = shutil.which("compute-sanitizer") or next(
        (str(file) for folder in PLACES if (file := Path(folder, "compute-sanitizer")).exists()),
        None,
    )
    if found is None:
        raise FileNotFoundError(
            "compute-sanitizer is not here: it comes with the CUDA toolkit; add its folder to PATH."
        )
    return found


def checked(tool: str, device: str) -> dict[str, Any]:
    """Run the self check under a tool; what that prints goes on as it comes.

    PyTorch takes each tensor's memory from CUDA alone: memcheck knows no smaller pieces.
    """
    command = [sanitizer(), "--tool", tool, "--print-limit", str(MOST_REPORTS)]
    command += ["--kernel-name", f"kernel_substring={OWN}"]
    command += [sys.executable, "-m", "benchmarks.gpu.digests", "self-check", "--device", device]
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    process.wait()
    return values_of(tool, "".join(lines))


def values_of(tool: str, text: str) -> dict[str, Any]:
    """Return the counts in what was printed.

    Raises:
        RuntimeError: there is no summary, or the check printed no values.
    """
    summaries, values = _SUMMARY.findall(text), last_values(text)
    if not summaries or values is None:
        raise RuntimeError(f"{tool} ended without a summary or without the check's values.")
    errors = sum(map(int, summaries))
    differing = [*values["differing"], *([f"{errors} errors of {tool}"] if errors else [])]
    return {**values, "errors": errors, "differing": differing}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tool", choices=["memcheck", "racecheck"])
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    print(json.dumps(checked(options.tool, options.device)))


if __name__ == "__main__":
    main()
