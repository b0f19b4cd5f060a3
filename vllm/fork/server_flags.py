"""The fork's flags of the server: what the bodies of requests may hold. No engine sees them.

And the default of one of upstream's: a server with hf_compat that is told to end (SIGTERM) answers
the requests that it has, for ``--shutdown-timeout`` seconds at most. Upstream aborts them.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import dataclass, field, fields
from typing import Any

DRAIN_S = 20
"""Seconds; supervisors commonly kill after thirty."""


def _flag(default: bool, text: str) -> Any:
    """Return a field with what ``vllm serve --help`` says about it."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class ServerFlags:
    """The values of the flags for one server; its fields are the flags' names.

    Attributes:
        hf_compat: whether the engine has the flag of that name; without it nothing here counts.
        strict_body: whether fields that nobody knows are refused.
    """

    hf_compat: bool = False
    strict_body: bool = _flag(
        True,
        "With --hf-compat: refuse a body with a field that neither vLLM nor the API that the route "
        "speaks nor GenerationConfig has, and suggest the nearest name; --no-strict-body ignores "
        "such fields, as upstream does.",
    )

    @classmethod
    def of(cls, args: Namespace) -> ServerFlags:
        """Read a parsed command line; programs may build an app with fewer arguments."""
        given = vars(args)
        return cls(**{f.name: given[f.name] for f in fields(cls) if f.name in given})


class _Default(int):
    """A ``--shutdown-timeout`` that nobody has chosen."""


def drain_by_default(namespace: Namespace, has_hf_compat: bool) -> None:
    """Give a command line that is being read hf_compat's ``--shutdown-timeout``, or upstream's.

    Args:
        namespace: of the command line, changed in place unless it has a timeout already.
        has_hf_compat: what it says about the flag.
    """
    if isinstance(getattr(namespace, "shutdown_timeout", None), _Default):
        namespace.shutdown_timeout = _Default(DRAIN_S if has_hf_compat else 0)


def add_cli_args(group: argparse._ArgumentGroup) -> None:
    """Add the flags to the fork's group of a command line."""
    for flag in fields(ServerFlags):
        if "help" in flag.metadata:
            group.add_argument(
                f"--{flag.name.replace('_', '-')}",
                action=argparse.BooleanOptionalAction,
                default=flag.default,
                help=flag.metadata["help"],
            )
    group.set_defaults(shutdown_timeout=_Default(0))
