"""The stage `build`: an environment with this distribution, kernels from source, without network.

    python3 benchmarks/gpu/build.py [--architecture 90a-real]

Run with the Python that has torch and Transformers. build/gpu/venv sees its packages; what it
lacks comes from build/gpu/pack, and this distribution is installed for CUDA with
VLLM_KERNELS=source. What was built of the same sources is not built again. However it ends,
build.json says how, and build.log has all output, in build/gpu/results and in $OUT. Uses the
standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
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
RESULTS = FOLDER / "results"
LOG = RESULTS / "build.log"

SOURCES = ("csrc", "distribution", "patches", "vllm", "pyproject.toml", "setup.py", "upstream.toml")
"""Files and folders that the build depends on."""

LAST_LINES = 40
"""Of a command's output, that are printed if it fails; the log has all."""


class BuildError(Exception):
    """A step failed; the message is a sentence."""


class Report:
    """What became of the build, step by step.

    Attributes:
        architecture: that is compiled for, as CMake writes it; None if it is not known.
        seconds: what each step took.
    """

    def __init__(self) -> None:
        self.architecture: str | None = None
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step of the stage, and say so."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(time.perf_counter() - start, 1)
            print(f"{self.seconds[name]:>7.1f} s  {name}", flush=True)

    def write(self, sources: str, failure: str | None) -> None:
        """Write build.json, and copy it and the log to $OUT."""
        text = json.dumps(
            {
                "architecture": self.architecture,
                "seconds": self.seconds,
                "sources": sources,
                "failure": failure,
            },
            indent=1,
        )
        (RESULTS / "build.json").write_text(text + "\n")
        if out := os.environ.get("OUT"):
            copy_results(Path(out))


def copy_results(out: Path) -> None:
    """Copy what was written to a folder; a line says so if that fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in (RESULTS / "build.json", LOG):
            shutil.copyfile(file, out / file.name)
    except OSError as error:
        print(f"note: {out} has no copy of the results: {error}", flush=True)


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
    present = run(str(PYTHON), "-c", listed).split()
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
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(PACK / "text.tar.xz") as archive:
            archive.extractall(partial, filter="data")
        partial.rename(folder)


def install_distribution(architecture: str) -> None:
    """Compile csrc/ for one architecture, and install this repository."""
    os.environ["CUDAARCHS"] = architecture
    os.environ["VLLM_TARGET_DEVICE"] = "cuda"
    os.environ["VLLM_KERNELS"] = "source"
    run(*pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)))


def pip(*arguments: str) -> list[str]:
    """Return a command of pip that asks no index."""
    options = ["--verbose", "--disable-pip-version-check", "--no-index"]
    return [str(PYTHON), "-m", "pip", arguments[0], *options, *arguments[1:]]


def run(*command: str) -> str:
    """Run a command and return its standard output; the log gets that and its errors.

    Raises:
        BuildError: it failed; its last lines are printed.
    """
    path = f"{VENV / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PATH": path}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        log.write(done.stdout)
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-LAST_LINES:]), flush=True)
        raise BuildError(
            f"`{' '.join(command[:4])} ...` failed with status {done.returncode}; its last lines "
            f"are above, and all in {LOG.name}."
        )
    return done.stdout


def architecture_of_gpu() -> str:
    """Return the name of the first GPU's architecture, as CMake writes it.

    Raises:
        BuildError: there is no GPU.
    """
    asked = (
        "import torch; "
        "print(*torch.cuda.get_device_capability() if torch.cuda.is_available() else ())"
    )
    found = run(str(PYTHON), "-c", asked).split()[-2:]
    if not found:
        raise BuildError("PyTorch finds no GPU here: name one by --architecture, such as 90a-real.")
    major, minor = found
    return f"{major}{minor}{'a' if major == '9' else ''}-real"


def digest_of_sources() -> str:
    """Return that of all that the build depends on."""
    digest = hashlib.sha256()
    for name in SOURCES:
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix not in (".pyc", ".so"):
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def is_built(sources: str, architecture: str | None) -> bool:
    """Return whether the environment has been made of these sources, for this architecture."""
    try:
        built = json.loads((RESULTS / "build.json").read_text())
    except (OSError, ValueError):
        return False
    is_same = built["sources"] == sources and built["failure"] is None and PYTHON.exists()
    return is_same and architecture in (None, built["architecture"])


def build(report: Report, asked: str | None) -> None:
    """Do all steps.

    Raises:
        BuildError: one failed.
    """
    if not PACK.is_dir():
        raise BuildError("build/gpu/pack is not there: run `python -m benchmarks.gpu.pack` before.")
    with report.step("environment"):
        make_environment()
    with report.step("wheels that are missing"):
        install_missing()
    with report.step("upstream's package"):
        unpack_upstream()
    report.architecture = asked or architecture_of_gpu()
    with report.step(f"distribution and kernels for {report.architecture}"):
        install_distribution(report.architecture)
    with report.step("import"):
        run(str(PYTHON), "-c", "from vllm.fork_ops import library; import vllm.entrypoints.llm; "
                               "assert library.load(), library.library_path()")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--architecture", help="such as 90a-real; that of the first GPU")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    sources = digest_of_sources()
    if is_built(sources, options.architecture):
        print("build: nothing has changed since the last one.", flush=True)
        return
    LOG.write_text("")
    report, failure = Report(), None
    try:
        build(report, options.architecture)
    except BuildError as error:
        failure = str(error)
    except Exception as error:  # so that the record says it
        failure = f"{type(error).__name__}: {error}"
    report.write(sources, failure)
    if failure is not None:
        sys.exit(f"error: {failure}")


if __name__ == "__main__":
    main()
