"""Rehearse benchmarks/gpu where there is no GPU: the same packages, the same pack, no network.

    .venv/bin/python tools/gpu_rehearsal.py python3.12 [--architecture 90a-real]

1. makes build/gpu/image, an environment with the packages that a GPU machine may have
   (benchmarks/gpu/image.txt: 5 GB of downloads, once), and the pack;
2. copies what would travel, the repository's files and the pack, to a new folder;
3. there, without network, runs build (for an architecture that is named), the first measurements of
   bits and speed on the CPU with a tiny model, and, with a GPU that is only said to be there,
   chooses and makes the layers of an engine.

Measurements that need a GPU (engines, compute-sanitizer) fail, as they must; what else fails is an
error. Needs nvcc on the PATH, iproute2, and the right to make a network namespace. Ten minutes on
two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import pack  # noqa: E402

IMAGE = ROOT / "build" / "gpu" / "image"
PACKAGES = ROOT / "benchmarks" / "gpu" / "image.txt"
PROBE = "tests/fork/source_kernels_probe.py"
MODEL = "models/tiny-python-llama"

NEED_A_GPU = re.compile("memcheck|racecheck|engine|graphs|exact|hf_compat|server")
"""In the names of such measurements."""

NO_GPU = ("GPU", "CUDA", "Device", "no device", "compute-sanitizer")
"""Words, one of which is in the sentence that such a measurement fails with."""


def make_image(python: str) -> None:
    """Make the environment, unless it has been made of the same list."""
    made_of = IMAGE / "made-of.txt"
    if made_of.exists() and made_of.read_text() == PACKAGES.read_text():
        return
    subprocess.run([python, "-m", "venv", "--clear", str(IMAGE)], check=True)
    pip = [str(IMAGE / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--upgrade", "pip"], check=True)
    subprocess.run([*pip, "install", "--no-compile", "-r", str(PACKAGES)], check=True)
    made_of.write_text(PACKAGES.read_text())


def travelling() -> Iterator[Path]:
    """Yield the files that would travel: tracked ones, new ones that are not ignored, the pack."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    yield from (
        ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()
    )
    yield from (path for path in pack.FOLDER.rglob("*") if path.is_file())


def copy_tree(folder: Path) -> None:
    """Copy all files that would travel."""
    for path in travelling():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def run_offline(folder: Path, out: Path, architecture: str, *command: str) -> int:
    """Run a command there as on the GPU machine; return its status."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        sys.exit("error: nvcc is not on the PATH: install CUDA 13's compiler, or add its folder.")
    places = [
        str(IMAGE / "bin"),
        str(Path(nvcc).parent),
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
        "/sbin",
    ]
    environment = {
        "PATH": ":".join(places),
        "HOME": str(folder),
        "PYTHON": str(IMAGE / "bin" / "python3"),
        "ARCHITECTURE": architecture,
        "OPTIONS": "--device cpu --model tiny --first --slower 6",
        "OUT": str(out),
        "MINUTES": "120",
    }
    # The new network has a loopback that is down; engines talk over it.
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return subprocess.run(
        [*alone, *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL
    ).returncode


def unexpected(out: Path) -> Iterator[str]:
    """Yield a line for each measurement that went wrong though it needs no GPU."""
    (file,) = out.glob("measured-*.json")
    outcomes: list[dict[str, Any]] = json.loads(file.read_text())["outcomes"]
    for one in outcomes:
        name, failure = one["name"], one["failure"]
        if NEED_A_GPU.search(name):
            if failure is None or not any(word in failure for word in NO_GPU):
                yield f"{name}: ended without a GPU with: {failure}"
        elif failure is not None:
            yield f"{name}: {failure}"
        elif (values := one["values"]).get("equal") != values.get("of"):
            yield f"{name}: {values['equal']} of {values['of']} are equal"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", help="such as python3.12")
    parser.add_argument("--architecture", default="90a-real")
    parser.add_argument("--only", choices=["bits", "bench"], help="measure no more")
    options = parser.parse_args()
    make_image(options.python)
    version = subprocess.run(
        [str(IMAGE / "bin" / "python"), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.pack", "--python", version], cwd=ROOT, check=True
    )
    with tempfile.TemporaryDirectory(prefix="gpu-rehearsal-") as name:
        folder, out = Path(name, "tree"), Path(name, "out")
        copy_tree(folder)
        stages = [options.only] if options.only else ["bits", "bench"]
        status = run_offline(folder, out, options.architecture, "benchmarks/gpu/run.sh", "build")
        if status:
            return status
        run_offline(folder, out, options.architecture, "benchmarks/gpu/run.sh", *stages)
        python = str(folder / "build/gpu/venv/bin/python")
        probe = run_offline(folder, out, options.architecture, python, PROBE, MODEL)
        lines = [*unexpected(out), *(["the probe of an engine failed"] if probe else [])]
        print("\n".join(f"UNEXPECTED  {line}" for line in lines) or "All went as it must.")
        print(
            *(f"{path.stat().st_size:>12,}  {path.name}" for path in sorted(out.iterdir())),
            sep="\n",
        )
        kept = ROOT / "build" / "gpu" / "rehearsal"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(out, kept)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
