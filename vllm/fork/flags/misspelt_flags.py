"""A flag of the fork that is misspelt on a command line: refused, with the name that was meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from vllm.fork.flags.flag_values import SPECS
from vllm.fork.nearest_name import nearest_name

_ALIKE = 0.87
"""Of `difflib`: ``--reciepts`` is near enough to ``--receipts``. ``--deterministic-mode``, a flag
of other programs, is not near enough to ``--deterministic``."""


def suggest_flags(parser: argparse.ArgumentParser) -> None:
    """Let a parser refuse what it does not know if it looks like a flag of the fork, in place.

    A program that reads only the arguments it knows would go on without the flag, and answer
    otherwise than was asked for.
    """
    parse = parser.parse_known_args

    def parse_and_suggest(*args: Any, **kwargs: Any) -> Any:
        namespace, rest = parse(*args, **kwargs)
        if meant := meant_flag(rest):
            parser.error(f"unrecognized arguments: {' '.join(rest)} (did you mean {meant}?)")
        return namespace, rest

    parser.parse_known_args = parse_and_suggest  # type: ignore[method-assign]


def meant_flag(unknown: Iterable[str]) -> str | None:
    """Return the flag of the fork that the first of some arguments looks like.

    Args:
        unknown: arguments that a parser does not have, with a value after ``=`` or without.

    Returns:
        The flag as it is written; None if none looks like one.
    """
    flags = [name.replace("_", "-") for name in SPECS]
    for argument in unknown:
        if not argument.startswith("--"):
            continue
        name = argument[2:].partition("=")[0]
        negation = "no-" if name.startswith("no-") else ""
        if near := nearest_name(name.removeprefix(negation), flags, _ALIKE):
            return f"--{negation}{near}"
    return None
