"""The pip that called the build backend: where it was told to look, and what its user can see.

pip hands its backend neither its options nor its terminal. Where a package is looked for decides
here between builds of torch, and what was decided must be said, so both are read from the calling
process, which Linux shows under /proc.
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
    caller = Path("/proc", str(os.getppid()))
    try:
        arguments = (caller / "cmdline").read_bytes().decode().split("\0")[:-1]
        folder = (caller / "cwd").resolve()
    except OSError:
        return Frontend((), is_pip_alone=False)
    return read_command_line(arguments, folder)


def read_command_line(arguments: Sequence[str], folder: Path) -> Frontend:
    """Return what the command line of a frontend, started in `folder`, says."""
    if not any(re.fullmatch(r"pip[\d.]*", Path(argument).name) for argument in arguments[:3]):
        return Frontend((), is_pip_alone=False)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, others in _WITH_VALUE.items():
        parser.add_argument(name, *others, action="append", default=[], dest=name)
    parser.add_argument("--no-index", action="store_true")
    parser.add_argument("-r", "--requirement", action="append")
    try:
        found, _ = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError:
        return Frontend((), is_pip_alone=False)
    options = ["--no-index"] if found.no_index else []
    for name in _WITH_VALUE:
        for value in getattr(found, name):
            path = folder / value
            options += [name, str(path) if name in _PATHS and path.exists() else value]
    return Frontend(tuple(options), is_pip_alone=found.requirement is None)


def tell_user(line: str) -> None:
    """Show a line to who started pip, which hides what a backend prints unless it fails.

    It goes to where pip's own errors go, if that is a terminal or a pipe: a file has a place of
    its own to write to in each process, and lines of two would cover each other.
    """
    print(line, flush=True)  # seen with `pip --verbose`
    with contextlib.suppress(OSError):
        errors = Path("/proc", str(os.getppid()), "fd", "2")
        if not stat.S_ISREG(errors.stat().st_mode):
            with errors.open("w") as stream:
                print(f"\n{line}", file=stream)
