"""Rehearse benchmarks/gpu where there is no GPU: the same packages, the same archive, no network.

    python3 tools/gpu_rehearsal.py python3.12 [--keep-archive]

1. makes build/gpu/image, an environment with the packages that a GPU machine may have
   (benchmarks/gpu/image.txt: 5 GB of downloads, once), and with it the archive;
2. copies what would travel, the repository's files and the archive, to new folders;
3. there, in a network namespace with nothing but loopback, runs call 1 on the CPU with a tiny model
   for times and engines, and call 2; compiles the Triton kernels of a start for sm_90; and chooses
   and makes the layers of an engine, with a GPU that is only said to be there;
4. runs call 1 again with faults: a crash, a hang, a wrong bit, a folder for results that is full,
   and a wheel that is missing.

What needs a GPU fails, as it must; what else goes otherwise than planned is printed, and the status
is 1. Needs nvcc on the PATH, iproute2, and the right to make a network namespace and to mount. Half
an hour on two cores.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GPU = ROOT / "build" / "gpu"
IMAGE = GPU / "image"
PACKAGES = ROOT / "benchmarks" / "gpu" / "image.txt"
ARCHIVE = Path("build/gpu/pack")
RESULTS = Path("build/gpu/results/results.json")
SLOWER = "8"
"""Factor of all limits: two cores instead of 16."""

ON_CPUS = (
    *("unpack", "bits: start", "bits: operations", "bits: shapes", "bits: draws"),
    *("bits: attached model", "generate", "generate without cudnn", "times"),
)
"""Steps that end well without a GPU."""

NO_GPU = (
    *("GPU", "CUDA", "cuda", "NVIDIA", "Device string must not be empty"),
    "0 active drivers",  # Triton's words
)
"""Words, one of which is in the error of the other steps."""

TOOLS = ("nvidia-smi", "counters", "fewer counters", "memcheck")
"""Steps whose programs may be missing."""

PROBES = (
    *("kernels that begin early", "a tensor that keeps no memory, in a CUDA graph", "Triton"),
    "kernels that begin early, in a CUDA graph",
)
"""What ``benchmarks.gpu.probes`` tries."""

Steps = dict[str, dict[str, Any]]


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


def copy_tree(folder: Path) -> Path:
    """Copy all files that would travel: tracked and new ones, and the archive."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    names += [path.relative_to(ROOT) for path in (ROOT / ARCHIVE).iterdir()]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def run_offline(folder: Path, out: Path, *command: str, **more: str) -> int:
    """Run a command there as on the GPU machine; return its status."""
    environment = {
        "PATH": f"{IMAGE / 'bin'}:/usr/local/bin:/usr/bin:/bin:/sbin",
        "HOME": str(folder),
        "PYTHON": str(IMAGE / "bin" / "python3"),
        "PYTHONPATH": f"{folder / 'build/gpu/site'}:{folder}",
        "OUT": str(out),
        "DEVICE": "cpu",
        "SHAPE": "tiny",
        "SLOWER": SLOWER,
        "SECONDS_IN_ALL": "3600",
        **more,
    }
    # The new network has a loopback that is down; engines talk over it.
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return subprocess.run(
        [*alone, *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL
    ).returncode


def steps_of(folder: Path) -> Steps:
    """Return what became of all steps of a call."""
    return {one["name"]: one for one in json.loads((folder / RESULTS).read_text())}


def otherwise(steps: Steps, faults: dict[str, str]) -> Iterator[str]:
    """Yield a line for each step that did not end as it must.

    Args:
        steps: that were run.
        faults: words in how steps end that a fault was made for.
    """
    for name in {*ON_CPUS, *faults} - steps.keys():
        yield f"{name}: it was not run"
    for name, one in steps.items():
        said = f"{one['error']} {one['values']}"
        if name in faults:
            if one["status"] == "0" or faults[name] not in said:
                yield f"{name}: ended with {one['status']}, {said[:300]}; {faults[name]!r} was made"
        elif name in ON_CPUS and one["status"] != "0":
            yield f"{name}: {said[:300]}"
        elif name not in ON_CPUS and not _wants_a_gpu(name, one):
            yield f"{name}: ended without a GPU with {said[:300]}"


def _wants_a_gpu(name: str, step: dict[str, Any]) -> bool:
    errors = [step["error"] or ""]
    if name == "probes":
        errors = [step["values"].get(probe, "") for probe in PROBES]
    words = (*NO_GPU, "No such file") if name in TOOLS else NO_GPU
    return all(any(word in error for word in words) for error in errors)


def clean(folder: Path, out: Path) -> Iterator[str]:
    """Both calls as they are, the Triton kernels, and the layers of an engine."""
    run_offline(folder, out, "benchmarks/gpu/run.sh", "1")
    yield from otherwise(steps_of(folder), {})
    if missing := {"table.txt", "results.json", "log.txt"} - {path.name for path in out.iterdir()}:
        yield f"there is no {', '.join(missing)} in $OUT"
    run_offline(folder, out, "benchmarks/gpu/run.sh", "2")
    if "counters" not in steps_of(folder):
        yield "call 2 ran nothing"
    python = str(IMAGE / "bin" / "python")
    if run_offline(folder, out, python, "-m", "tools.triton_for_hopper"):
        yield "a Triton kernel was not compiled"
    probe = ("tests/fork/source_kernels_probe.py", "models/tiny-python-llama")
    if run_offline(folder, out, python, *probe):
        yield "the probe of an engine failed"


def faulty(folder: Path, out: Path) -> Iterator[str]:
    """A crash, a hang, an error, a wrong bit, and no room for what is to travel back."""
    break_module(folder, "times", "import os; os.abort()")
    break_module(folder, "model_bits", "import time; time.sleep(10**6)")
    break_module(folder, "generate", "raise OSError('a disk error')")
    repack(folder, lambda name, read: other_digest(read()) if name == "shapes.json" else read())
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(out)], check=True)
    try:
        status = run_offline(folder, out, "benchmarks/gpu/run.sh", "1", SLOWER="4")
    finally:
        subprocess.run(["umount", str(out)], check=True)
    if not status:
        yield "the call with a wrong bit ended with status 0"
    limit = "it was ended at its limit"
    faults = {"times": "SIGABRT", "bits: attached model": limit, "bits: shapes": "rows: gated"}
    faults |= dict.fromkeys(("generate", "generate without cudnn"), "a disk error")
    faults |= dict.fromkeys(("bits: engine", "bits: engine with graphs"), limit)
    yield from otherwise(steps_of(folder), faults)


def without_a_wheel(folder: Path, out: Path) -> Iterator[str]:
    """A package of the archive that nothing on the machine replaces: operations do without it."""
    repack(folder, lambda name, read: None if name.startswith("msgspec") else read())
    run_offline(folder, out, "benchmarks/gpu/run.sh", "1")
    steps = steps_of(folder)
    engines = [name for name in steps if name.startswith(("engine", "bits: e"))]
    names = ["bits: attached model", "hf_compat", *engines]
    yield from otherwise(steps, dict.fromkeys(names, "msgspec"))


def break_module(folder: Path, name: str, line: str) -> None:
    """Let a module of benchmarks.gpu do something else when it is run."""
    file = folder / "benchmarks" / "gpu" / f"{name}.py"
    marker = "def main() -> None:\n"
    assert marker in file.read_text()
    file.write_text(file.read_text().replace(marker, f"{marker}    {line}\n"))


def other_digest(text: bytes) -> bytes:
    """Return shapes.json with a digest that no device has."""
    kept = json.loads(text)
    kept["digests"]["rows"]["gated"] = "0" * 16
    return json.dumps(kept).encode()


def repack(folder: Path, change: Callable[[str, Callable[[], bytes]], bytes | None]) -> None:
    """Replace the contents of the archive's files, or leave those out that become None."""
    archive = folder / ARCHIVE / "site.tar.xz"
    changed = archive.with_suffix(".new")
    with tarfile.open(archive) as old, tarfile.open(changed, "w:xz", preset=0) as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None, member.name
            contents = change(member.name, file.read)
            if contents is not None:
                member.size = len(contents)
                new.addfile(member, io.BytesIO(contents))
    changed.rename(archive)


WAYS = {"clean": clean, "faulty": faulty, "without a wheel": without_a_wheel}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", help="such as python3.12")
    parser.add_argument("--keep-archive", action="store_true", help="rather than make it again")
    parser.add_argument("--only", choices=WAYS, help="of the runs")
    options = parser.parse_args()
    make_image(options.python)
    if not options.keep_archive:
        command = [str(IMAGE / "bin" / "python"), "-m", "benchmarks.gpu.pack"]
        subprocess.run(command, cwd=ROOT, check=True)
    failed = False
    for name, way in WAYS.items():
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="gpu-rehearsal-") as place:
            lines = list(way(copy_tree(Path(place, "tree")), Path(place, "out")))
            failed |= bool(lines)
            print(f"\n=== {name}")
            print("\n".join(f"UNEXPECTED  {line}" for line in lines) or "All went as it must.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
