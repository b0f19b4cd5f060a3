"""The stage `build`: an environment with this distribution, kernels from source, without network.

    python3 benchmarks/gpu/build.py [--architecture 90a-real]

Run with the Python that has torch and Transformers. build/gpu/venv sees its packages; what it lacks
comes from build/gpu/pack, and this distribution is installed for CUDA with VLLM_KERNELS=source.
Uses the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import site
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "gpu"
PACK = FOLDER / "pack"
VENV = FOLDER / "venv"
PYTHON = VENV / "bin" / "python"

seconds: dict[str, float] = {}
"""What each step took."""


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Time a step of the stage, and say so."""
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 1)
    print(f"{seconds[name]:>7.1f} s  {name}", flush=True)


def make_environment() -> None:
    """Make the environment, with the packages of the Python that runs this.

    An environment of an environment would see the first Python's packages only, so that those of
    this one are added by name.
    """
    venv.EnvBuilder(clear=True, with_pip=False).create(VENV)
    folders = [folder for folder in site.getsitepackages() if Path(folder).is_dir()]
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    packages = VENV / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (packages / "site-packages" / "outer.pth").write_text("\n".join(lines) + "\n")


def install_missing() -> None:
    """Install the wheels of the pack whose distributions the environment lacks."""
    wheels = {normalised(path.name.split("-")[0]): path for path in PACK.glob("wheels/*.whl")}
    listed = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    present = run(str(PYTHON), "-c", listed, capture=True).split()
    missing = [str(wheels[name]) for name in sorted(wheels.keys() - set(map(normalised, present)))]
    if missing:
        run(*pip("install", "--no-deps", *missing))


def normalised(name: str) -> str:
    """Return a distribution's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def unpack_upstream() -> None:
    """Unpack upstream's package where `distribution.pristine` looks for it."""
    sha256 = tomllib.loads((ROOT / "upstream.toml").read_text())["cuda"]["sha256"]
    folder = ROOT / "build" / "cuda" / f"text-{sha256[:12]}"
    if not folder.exists():
        with tarfile.open(PACK / "text.tar.xz") as archive:
            archive.extractall(folder, filter="data")


def install_distribution(architecture: str) -> None:
    """Compile csrc/ for one architecture, and install this repository."""
    os.environ["CUDAARCHS"] = architecture
    os.environ["VLLM_TARGET_DEVICE"] = "cuda"
    os.environ["VLLM_KERNELS"] = "source"
    run(*pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)))


def pip(*arguments: str) -> list[str]:
    """Return a command of pip that asks no index."""
    options = ["--quiet", "--disable-pip-version-check", "--no-index"]
    return [str(PYTHON), "-m", "pip", arguments[0], *options, *arguments[1:]]


def run(*command: str, capture: bool = False) -> str:
    """Run a command and return what it printed, if that is captured.

    Raises:
        SystemExit: it failed; its last lines are above.
    """
    path = f"{VENV / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PATH": path}, text=True,
        stdout=subprocess.PIPE if capture else None,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"error: `{' '.join(command[:4])} ...` failed; its output is above.")
    return done.stdout or ""


def architecture_of_gpu() -> str:
    """Return the name of the first GPU's architecture, as CMake writes it.

    Raises:
        SystemExit: there is no GPU.
    """
    asked = (
        "import torch; "
        "print(*torch.cuda.get_device_capability() if torch.cuda.is_available() else ())"
    )
    found = run(str(PYTHON), "-c", asked, capture=True).split()
    if not found:
        sys.exit("error: PyTorch finds no GPU here: name one by --architecture, such as 90a-real.")
    major, minor = found
    return f"{major}{minor}{'a' if major == '9' else ''}-real"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--architecture", help="such as 90a-real; that of the first GPU")
    options = parser.parse_args()
    if not PACK.is_dir():
        sys.exit("error: build/gpu/pack is not there: run `python -m benchmarks.gpu.pack` before.")
    with step("environment"):
        make_environment()
    with step("wheels that are missing"):
        install_missing()
    with step("upstream's package"):
        unpack_upstream()
    architecture = options.architecture or architecture_of_gpu()
    with step(f"distribution and kernels for {architecture}"):
        install_distribution(architecture)
    with step("import"):
        run(str(PYTHON), "-c", "from vllm.fork_ops import library; import vllm.entrypoints.llm; "
                               "assert library.load(), library.library_path()")  # fmt: skip
    out = Path(os.environ.get("OUT") or FOLDER / "results")
    out.mkdir(parents=True, exist_ok=True)
    report = {"architecture": architecture, "seconds": seconds}
    (out / "build.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
