"""Text without torchvision, for models whose code in vLLM has a processor of pictures beside it.

Why: vLLM's module of Qwen3.5 imports Transformers' processors of pictures and videos, whose modules
  import torchvision first. The CPU target has none, and so not even the model of text starts.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/text-without-torchvision.md).
Exit condition: Upstream imports processors where it makes one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_PACKAGE = "torchvision"
_MODULES = [
    _PACKAGE,
    f"{_PACKAGE}.transforms",
    f"{_PACKAGE}.transforms.v2",
    f"{_PACKAGE}.transforms.v2.functional",
]
_OF_PROCESSORS = re.compile(r"transformers\.models\.\w+\.(image|video)_processing_\w+")

_WITH_TEXT = ("vllm.model_executor.models.qwen3_5", "vllm.models.qwen4_exp")
"""Modules of vLLM that have a model of text, too; others are named by `missing_packages`."""


class _Missing(ModuleType):
    """Stands for a module of torchvision while another one is imported that names it."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - what makes it a package

    def __getattr__(self, name: str) -> Any:
        """Refuse to be used.

        Raises:
            AttributeError: of what every module may be asked for.
            ModuleNotFoundError: of anything else.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)


class _Finder(MetaPathFinder):
    """Finds Transformers' modules of processors, to import them without torchvision."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As ``MetaPathFinder.find_spec``."""
        if _OF_PROCESSORS.fullmatch(fullname) is None or not _is_needed():
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Importing(spec.loader)
        return spec


class _Importing(Loader):
    """Imports a module that names torchvision, as far as it only names it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As ``Loader.create_module``."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As ``Loader.exec_module``."""
        with _named():
            self._loader.exec_module(module)


@contextmanager
def _named() -> Iterator[None]:
    """Let torchvision be imported for a while, though it is not there."""
    before = {name: sys.modules.get(name) for name in _MODULES}
    made: dict[str, ModuleType] = {name: _Missing(name) for name in before}
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            vars(made[parent])[child] = module
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                del sys.modules[name]
            else:
                sys.modules[name] = was


def _is_needed() -> bool:
    """Whether a module with a model of text is being imported, and torchvision is not there."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in _WITH_TEXT)
    is_importing = any(getattr(spec, "_initializing", False) for spec in specs)
    return is_importing and PathFinder.find_spec(_PACKAGE) is None


def name_torchvision_without_it() -> None:
    """Let modules be imported that name torchvision; its use ends with a ModuleNotFoundError."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
