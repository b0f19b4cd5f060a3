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
import fcntl
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
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "gpu"
PACK = FOLDER / "pack"
VENV = FOLDER / "venv"
PYTHON = VENV / "bin" / "python"
RESULTS = FOLDER / "results"
LOG = RESULTS / "build.log"

SOURCES = (
    *("CMakeLists.txt", "cmake", "csrc", "distribution", "patches", "vllm"),
    *("pyproject.toml", "setup.py", "upstream.toml"),
)
"""Files and folders that the build depends on."""

NEEDED = (
    *("PIL", "aiohttp", "cloudpickle", "cmake", "cpuinfo", "cv2", "einops", "google.protobuf"),
    *("ninja", "numba", "pip", "prometheus_client", "psutil", "requests", "rich", "sentencepiece"),
    *("setuptools", "tiktoken", "torch", "transformers", "wheel"),
)
"""Modules that the machine's Python must have: see wheels.txt."""

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
    places = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    folders = [folder for folder in places if Path(folder).is_dir()]
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
    """Run a command and return its output and errors, which the log gets as they come.

    Raises:
        BuildError: it failed; its last lines are printed.
    """
    path = f"{VENV / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        start = log.tell()
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PATH": path},
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    with LOG.open(errors="replace") as log:
        log.seek(start)
        output = log.read()
    if done.returncode:
        print("\n".join(output.splitlines()[-LAST_LINES:]), flush=True)
        raise BuildError(
            f"`{' '.join(command[:4])} ...` failed with status {done.returncode}; its last lines "
            f"are above, and all in {LOG.name}."
        )
    return output


def architecture_of_gpu() -> str:
    """Return the name of the first GPU's architecture, as CMake writes it.

    Raises:
        BuildError: there is no GPU.
    """
    asked = (
        "import torch; found = torch.cuda.is_available() and torch.cuda.get_device_capability(); "
        "print('capability', *found or ())"
    )
    said = run(sys.executable, "-c", asked)
    found = re.search(r"^capability (\d+) (\d+)$", said, re.MULTILINE)
    if found is None:
        warning = " ".join(said.replace("capability", "").split())
        raise BuildError(
            "PyTorch finds no GPU here: to build without one, name its architecture, such as "
            f"ARCHITECTURE=90a-real.{f' It says: {warning}' if warning else ''}"
        )
    major, minor = found.groups()
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


def is_built(sources: str, architecture: str) -> bool:
    """Return whether the environment has been made of these sources, for this architecture."""
    try:
        built = json.loads((RESULTS / "build.json").read_text())
        is_same = (built["sources"], built["architecture"]) == (sources, architecture)
        return is_same and built["failure"] is None and PYTHON.exists()
    except (OSError, ValueError, TypeError, KeyError):
        return False


def check_pack() -> None:
    """Check that there is a pack for this Python.

    Raises:
        BuildError: there is none.
    """
    if not PACK.is_dir():
        raise BuildError("build/gpu/pack is not there: run `python -m benchmarks.gpu.pack` before.")
    version = PACK / "python.txt"
    packed = version.read_text().strip() if version.exists() else "an unknown version"
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if packed != own:
        raise BuildError(
            f"build/gpu/pack is for Python {packed}, and this is {own}: make it with "
            f"`python -m benchmarks.gpu.pack --python {own}`, or name another Python by PYTHON."
        )


def check_present() -> None:
    """Check that the packages are here that are in no pack.

    Raises:
        BuildError: it names those that are missing.
    """
    missing = [name for name in NEEDED if not find_spec(name)]
    if missing:
        raise BuildError(
            f"{Path(sys.executable)} has not {', '.join(missing)}, which the pack leaves to the "
            "machine: install these, or name another Python by PYTHON."
        )


def build(report: Report, architecture: str) -> None:
    """Do all steps.

    Raises:
        BuildError: one failed.
    """
    check_pack()
    check_present()
    with report.step("environment"):
        make_environment()
    with report.step("wheels that are missing"):
        install_missing()
    with report.step("upstream's package"):
        unpack_upstream()
    with report.step(f"distribution and kernels for {architecture}"):
        install_distribution(architecture)
    with report.step("import"):
        run(str(PYTHON), "-c", "from vllm.fork_ops import library; import vllm.entrypoints.llm; "
                               "assert library.load(), library.library_path()")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--architecture", help="such as 90a-real; that of the first GPU")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with alone():
        sources, report, failure = digest_of_sources(), Report(), None
        try:
            architecture = options.architecture or architecture_of_gpu()
            report.architecture = architecture
            if is_built(sources, architecture):
                print("build: nothing has changed since the last one.", flush=True)
                return
            LOG.write_text("")
            report.write(sources, "it was interrupted")
            build(report, architecture)
        except BuildError as error:
            failure = str(error)
        except Exception as error:  # so that the record says it
            failure = f"{type(error).__name__}: {error}"
        report.write(sources, failure)
        if failure is not None:
            sys.exit(f"error: {failure}")


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let no other call build or measure in this folder meanwhile.

    Raises:
        SystemExit: another one does.
    """
    with (FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("error: another call builds or measures here: wait for it, or end it.")
        yield


if __name__ == "__main__":
    main()
