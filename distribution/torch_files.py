"""The torch that csrc/ is compiled against: its headers, and the libraries that it is linked with.

They are taken out of the wheel that will be installed, or are those of an installed torch that
fits. torch as a requirement of the build would bring all that torch itself requires, in a build for
CUDA several gigabytes, a second time.
"""

from __future__ import annotations

import importlib.util
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

from packaging.specifiers import SpecifierSet

from distribution.environment import installed_version, site_packages
from distribution.errors import DistributionError
from distribution.pins import ROOT, Pin, load_pin
from distribution.pip import reason, run_pip
from distribution.pristine import build_folder, replacing
from distribution.target import choose_kernels
from distribution.torch_source import TorchSource, load_source

NEEDED = {
    "cpu": ("torch/include/*", "torch/lib/libtorch_cpu.so"),
    "cuda": ("torch/include/*", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_cuda.so"),
}
"""What is taken out of the wheel for each target."""


def source_file(target: str, root: Path = ROOT) -> Path:
    """Return the file that keeps where the torch of the current installation comes from."""
    return build_folder(target, root) / "torch.json"


def installed_torch_fits(pin: Pin, site: Path | None = None) -> bool:
    """Return whether the environment has a torch that this distribution runs with.

    What stands behind a version's "+" does not matter: torch has the same ABI in every build.
    """
    installed = installed_version("torch", site)
    return installed is not None and SpecifierSet(pin.torch).contains(
        installed.partition("+")[0], prereleases=True
    )


def torch_folder(target: str, root: Path = ROOT) -> Path:
    """Return the package folder of the torch to compile against, without importing it.

    The one that was unpacked earlier comes first: with the same headers, nothing is compiled
    again after torch was installed.

    Raises:
        DistributionError: there is none, and none can be downloaded.
    """
    pin = load_pin(target, kernels=choose_kernels(target))
    unpacked = build_folder(target, root) / f"torch{pin.torch}"
    if unpacked.exists():
        return unpacked / "torch"
    installed = _importable_torch() or site_packages() / "torch"
    if installed.is_dir() and installed_torch_fits(pin, installed.parent):
        return installed
    source = load_source(source_file(target, root)) or TorchSource(f"torch{pin.torch}")
    with replacing(unpacked) as partial:
        _unpack(source, NEEDED[target], partial)
    return unpacked / "torch"


def _importable_torch() -> Path | None:
    """Return the folder of the torch that this process could import, as with
    ``pip --no-build-isolation``."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def _unpack(source: TorchSource, needed: tuple[str, ...], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        done = run_pip("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest",
                       temporary, *source.options, source.requirement)  # fmt: skip
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            name = source.requirement.partition(" @")[0]  # an address may have a login
            raise DistributionError(
                f"pip could not download {name}, against which csrc/ is compiled "
                f"({reason(done)}): check the network and pip's index settings, or install torch "
                "into this environment first."
            )
        with zipfile.ZipFile(wheels[0]) as archive:
            names = archive.namelist()
            archive.extractall(folder, [n for n in names if any(fnmatch(n, p) for p in needed)])
    if not (folder / "torch" / "include").is_dir():
        raise DistributionError(f"{wheels[0].name} holds no headers to compile csrc/ against.")
    (folder / "torch" / "share" / "cmake").mkdir(parents=True)  # which CMake is pointed to
