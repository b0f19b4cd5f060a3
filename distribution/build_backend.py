"""The PEP 517 / PEP 660 backend that pip calls: setuptools', after this project's checks.

``get_requires_for_build_*`` is the first thing that pip asks, before it installs anything large,
so that is where the environment, the compilers and the disk are checked.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from packaging.specifiers import SpecifierSet
from setuptools import build_meta

from distribution.disk import check_disk, needs
from distribution.environment import installed_version, refuse_upstream_vllm
from distribution.errors import DistributionError
from distribution.kernels import check_cxx
from distribution.nvcc import PACKAGES, nvcc
from distribution.pins import Pin, load_pin
from distribution.pristine import build_folder
from distribution.target import choose_kernels, choose_target

ConfigSettings = dict[str, Any] | None

build_wheel = build_meta.build_wheel
build_editable = build_meta.build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    """Check that the build can succeed, and return what it needs besides pyproject.toml's list."""
    with _errors_as_sentences():
        target = choose_target()
        pin = load_pin(target, kernels=choose_kernels(target))
        refuse_upstream_vllm()
        check_cxx()
        torch_is_installed = _installed_torch_fits(pin)
        check_disk(needs(pin.target, build_folder(pin.target), with_torch=not torch_is_installed))
    # csrc/ is compiled against torch's headers; an environment that has torch serves with its own.
    torch = [] if torch_is_installed else [f"torch{pin.torch}"]
    needs_nvcc = pin.target == "cuda" and nvcc() is None
    return [*torch, *(PACKAGES if needs_nvcc else ())]


get_requires_for_build_editable = get_requires_for_build_wheel


def _installed_torch_fits(pin: Pin) -> bool:
    installed = installed_version("torch")
    # The wheel's torch has the same ABI whatever its build, which is what stands behind "+".
    return installed is not None and SpecifierSet(pin.torch.partition("+")[0]).contains(
        installed.partition("+")[0], prereleases=True
    )


@contextlib.contextmanager
def _errors_as_sentences() -> Iterator[None]:
    """Show the user the sentence alone: pip prints what a failed hook wrote."""
    try:
        yield
    except DistributionError as error:
        sys.exit(f"error: {error}")
