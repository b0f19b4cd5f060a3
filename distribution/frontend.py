"""The pip that called the build backend: where it was told to look, and what its user can see.

pip hands its backend neither its options nor its folder nor its terminal. Where a package is looked
for decides here between builds of torch, and what was decided must be said, so they are read from
the calling process, which Linux shows under /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_WITH_VALUE = {
    "--index-url": ("-i", "--pypi-url"),
    "--extra-index-url": (),
    "--find-links": ("-f",),
    "--trusted-host": (),
    "--cert": (),
    "--client-cert": (),
    "--proxy": (),
    "--constraint": ("-c",),
    "--timeout": (),
    "--retries": (),
}
_FLAGS = ("--no-index", "--isolated")
_OTHER_FLAGS = "UqvIyhV"
_OTHER_WITH_VALUE = "etdbwC"
"""pip's other short options, which may stand in one word with those above."""

_PATHS = {"--find-links", "--constraint", "--cert", "--client-cert"}


@dataclass(frozen=True)
class Frontend:
    """What called the backend.

    Attributes:
        options: of its command line, those that say where and how packages are looked for.
        is_pip_alone: it is pip, and no file of requirements may hold further options.
    """

    options: tuple[str, ...]
    is_pip_alone: bool


def calling_frontend() -> Frontend:
    """Return what called this process, by its command line."""
    try:
        arguments = _caller("cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return Frontend((), is_pip_alone=False)
    return read_command_line(arguments, calling_folder())


def calling_folder() -> Path:
    """Return the folder that the calling process is in, which relative paths of its user mean;
    pip calls a backend in another one."""
    try:
        return _caller("cwd").resolve(strict=True)
    except OSError:
        return Path.cwd()


def _caller(name: str) -> Path:
    return Path("/proc", str(os.getppid()), name)


def read_command_line(arguments: Sequence[str], folder: Path) -> Frontend:
    """Return what the command line of a frontend, started in `folder`, says."""
    after_pip = _arguments_of_pip(arguments)
    if after_pip is None:
        return Frontend((), is_pip_alone=False)
    try:
        found, _ = _parser().parse_known_args(after_pip)
    except argparse.ArgumentError:
        return Frontend((), is_pip_alone=False)
    options = [flag for flag in _FLAGS if getattr(found, flag)]
    for name in _WITH_VALUE:
        for value in getattr(found, name):
            path = folder / value
            options += [name, str(path) if name in _PATHS and path.exists() else value]
    return Frontend(tuple(options), is_pip_alone=found.requirement is None)


def _arguments_of_pip(arguments: Sequence[str]) -> list[str] | None:
    """Return what follows pip on a command line: itself, a script of Python's, or a module."""
    for i, argument in enumerate(arguments):
        is_module = argument == "pip" and i > 0 and arguments[i - 1] == "-m"
        is_program = re.fullmatch(r"pip[\d.]*", Path(argument).name) and i <= 1
        if is_module or (is_program and Path(arguments[0]).name != "uv"):
            return list(arguments[i + 1 :])
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for name, others in _WITH_VALUE.items():
        parser.add_argument(name, *others, action="append", default=[], dest=name)
    for flag in _FLAGS:
        parser.add_argument(flag, action="store_true", dest=flag)
    parser.add_argument("-r", "--requirement", action="append")
    for letter in _OTHER_FLAGS:
        parser.add_argument(f"-{letter}", action="count", dest=f"flag {letter}")
    for letter in _OTHER_WITH_VALUE:
        parser.add_argument(f"-{letter}", action="append", dest=f"value {letter}")
    return parser


def tell_user(line: str) -> None:
    """Show a line to who started pip, which hides what a backend prints unless it fails.

    It goes to where pip's own errors go, if that is a terminal or a pipe: a file has a place of
    its own to write to in each process, and lines of two would cover each other.
    """
    print(line, flush=True)  # seen with `pip --verbose`
    with contextlib.suppress(OSError):
        errors = _caller("fd") / "2"
        if not stat.S_ISREG(errors.stat().st_mode):
            with errors.open("w") as stream:
                print(f"\n{line}", file=stream)
