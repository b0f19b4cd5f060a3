"""Hands the assembled tree to setuptools; distribution/ does the work."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

from distribution.environment import refuse_upstream_vllm
from distribution.errors import DistributionError
from distribution.kernels import LIBRARY, build_library, platform_tag
from distribution.metadata import adapt_metadata
from distribution.pins import load_pin
from distribution.pristine import build_folder, one_at_a_time, pristine_tree
from distribution.target import choose_kernels, choose_target
from distribution.tree import assembled_tree

ROOT = Path(__file__).resolve().parent
EDITABLE_COMMANDS = {"editable_wheel", "develop"}


class BuildKernels(build_ext):
    """Builds csrc/ instead of a Python extension: the library has no Python ABI."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")[:-1], LIBRARY)

    def build_extension(self, ext: Extension) -> None:
        destination = Path(self.get_ext_fullpath(ext.name))
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build_library(choose_target()), destination)


def main() -> None:
    refuse_upstream_vllm()  # pip --no-build-isolation does not ask the backend to check
    target = choose_target()
    with one_at_a_time(target):
        build(target)


def build(target: str) -> None:
    pin = load_pin(target, kernels=choose_kernels(target))
    link = bool(EDITABLE_COMMANDS & set(sys.argv))
    # Metadata alone is asked for before the commands that say which of the two trees is wanted.
    pristine = pristine_tree(target, kernels=pin.kernels)
    tree = assembled_tree(target, link=link, kernels=pin.kernels) if _builds() else pristine
    metadata = adapt_metadata(pristine, pin)
    where = os.path.relpath(tree, ROOT)
    scratch = build_folder(target) / "setuptools"
    shutil.rmtree(scratch, ignore_errors=True)  # would carry deleted files into the next wheel
    scratch.mkdir()
    setup(
        version=pin.version,
        package_dir={"": where},
        packages=find_packages(where, include=["vllm", "vllm.*"]),
        package_data={"vllm": ["**/*"]},
        include_package_data=False,
        install_requires=metadata.requires,
        extras_require=metadata.extras,
        entry_points=metadata.entry_points,
        options={
            "bdist_wheel": {"py_limited_api": "cp311", "plat_name": platform_tag()},
            "build": {"build_base": str(scratch)},
            "egg_info": {"egg_base": str(scratch)},
        },
        ext_modules=[Extension("vllm._fork_C", sources=[], py_limited_api=True)],
        cmdclass={"build_ext": BuildKernels},
    )


def _builds() -> bool:
    return not {"egg_info", "dist_info"} & set(sys.argv)


try:
    main()
except DistributionError as error:
    sys.exit(f"error: {error}")
