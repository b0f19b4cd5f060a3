"""The PEP 517 / PEP 660 backend that pip calls: setuptools', after this project's checks.

``get_requires_for_build_*`` is the first thing that pip asks, before it installs anything large,
so that is where the environment, the compilers and the disk are checked, and where it is decided
which torch is installed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setuptools import build_meta

from distribution.cxx import check_cxx
from distribution.disk import check_disk, needs
from distribution.environment import refuse_upstream_vllm
from distribution.errors import DistributionError
from distribution.nvcc import PACKAGES, nvcc
from distribution.pins import load_pin
from distribution.pristine import build_folder
from distribution.target import choose_kernels, choose_target
from distribution.torch_files import installed_torch_fits, source_file
from distribution.torch_source import find_torch, load_source

ConfigSettings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    """Check that the build can succeed, and return what it needs besides pyproject.toml's list."""
    with _errors_as_sentences():
        target = choose_target()
        pin = load_pin(target, kernels=choose_kernels(target))
        refuse_upstream_vllm()
        check_cxx()
        source_file(target).unlink(missing_ok=True)
        source = None if installed_torch_fits(pin) else find_torch(pin)
        check_disk(needs(target, build_folder(target), torch=source))
        if source is not None:
            source.save(source_file(target))
    return list(PACKAGES) if target == "cuda" and nvcc() is None else []


get_requires_for_build_editable = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: ConfigSettings = None
) -> str:
    """Write what the distribution declares, by which pip chooses what else it installs."""
    name = build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    return _say_where_torch_is(metadata_directory, name)


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: ConfigSettings = None
) -> str:
    """Write what the distribution declares, by which pip chooses what else it installs."""
    name = build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)
    return _say_where_torch_is(metadata_directory, name)


def build_wheel(
    wheel_directory: str,
    config_settings: ConfigSettings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel, with metadata of its own instead of the prepared: see below."""
    with _end_of_installation():
        return build_meta.build_wheel(wheel_directory, config_settings)


def build_editable(
    wheel_directory: str,
    config_settings: ConfigSettings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build what an editable installation consists of, with metadata of its own, too."""
    with _end_of_installation():
        return build_meta.build_editable(wheel_directory, config_settings)


def build_sdist(sdist_directory: str, config_settings: ConfigSettings = None) -> str:
    """Refuse: a source distribution would be this repository."""
    sys.exit(
        "error: there is no source distribution: clone the repository, or build a wheel with "
        "`make wheel`, `python -m build --wheel` or `uv build --wheel`."
    )


@contextlib.contextmanager
def _end_of_installation() -> Iterator[None]:
    """Forget what was decided for one installation when it is over."""
    try:
        yield
    finally:
        source_file(choose_target()).unlink(missing_ok=True)


def _say_where_torch_is(folder: str, name: str) -> str:
    """Let pip take torch from where it cannot find it by itself, in this one installation.

    Only what pip asks for before it installs gets the address. The installed metadata and a wheel
    keep the plain requirement: an address there would be fetched again by every later pip that
    looks at this distribution's requirements, even where a torch that fits is installed, and would
    fail without a network.
    """
    target = choose_target()
    pin = load_pin(target, kernels=choose_kernels(target))
    source = load_source(source_file(target))
    if source is not None and not installed_torch_fits(pin):
        metadata = Path(folder, name, "METADATA")
        plain = f"Requires-Dist: torch{pin.torch}\n"
        before, _, after = metadata.read_text().partition(plain)
        metadata.write_text(f"{before}Requires-Dist: {source.requirement}\n{after}")
    return name


@contextlib.contextmanager
def _errors_as_sentences() -> Iterator[None]:
    """Show the user the sentence alone: pip prints what a failed hook wrote."""
    try:
        yield
    except (DistributionError, OSError) as error:
        sys.exit(f"error: {error}")
