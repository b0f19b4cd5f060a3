"""The fork's flags of the server: what the bodies of requests may hold. No engine sees them.

And the default of one of upstream's: a server with hf_compat that is told to end (SIGTERM) answers
the requests that it has, for ``--shutdown-timeout`` seconds at most. Upstream aborts them.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import dataclass, field, fields
from typing import Any

from vllm.fork.flags.flag_values import given_or_variable

DRAIN_S = 20
"""Seconds; supervisors commonly kill after thirty."""


_LIMIT = "With --hf-compat: the limit that a body has for"


def _flag(default: bool | int, text: str) -> Any:
    """Return a field with what ``vllm serve --help`` says about it."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class ServerFlags:
    """The values of the flags for one server; its fields are the flags' names.

    Attributes:
        hf_compat: whether the engine has the flag of that name; without it no limit counts.
        deterministic: likewise; whether bodies are refused that nobody can read.
        receipts: likewise; whether bodies may ask for receipts.
        strict_body: whether fields that nobody knows are refused.
        max_body_bytes: the most bytes of a body.
        max_body_parts: the most lists and objects in a body.
        max_requests: the most answers that a body asks for.
        max_num_beams: the most beams of a search.
        max_ngram_size: the longest n-grams that may not repeat.
        max_token_sequences: the most entries of ``bad_words_ids`` or ``sequence_bias``.
        max_listed_tokens: the most tokens in all lists of them.
        max_stop_strings: the most ``stop_strings``.
        max_stop_string_length: the most characters of one.
    """

    hf_compat: bool | str = False
    deterministic: bool | str = False
    receipts: bool | str = False
    strict_body: bool = _flag(
        True,
        "With --hf-compat: refuse a body with a field that neither vLLM nor the API that the route "
        "speaks nor GenerationConfig has, and suggest the nearest name; --no-strict-body ignores "
        "such fields, as upstream does.",
    )
    max_body_bytes: int = _flag(1 << 24, f"{_LIMIT} its bytes.")
    max_body_parts: int = _flag(16_384, f"{_LIMIT} the number of its lists and objects.")
    max_requests: int = _flag(
        1024, f"{_LIMIT} the answers that it asks for: prompts, chats or items, times n."
    )
    max_num_beams: int = _flag(32, f"{_LIMIT} num_beams.")
    max_ngram_size: int = _flag(
        1024, f"{_LIMIT} no_repeat_ngram_size and encoder_no_repeat_ngram_size."
    )
    max_token_sequences: int = _flag(
        1024, f"{_LIMIT} the number of entries of bad_words_ids, and of sequence_bias."
    )
    max_listed_tokens: int = _flag(
        65_536,
        f"{_LIMIT} the number of tokens in bad_words_ids, sequence_bias, suppress_tokens, "
        "begin_suppress_tokens and eos_token_id together.",
    )
    max_stop_strings: int = _flag(64, f"{_LIMIT} the number of stop_strings.")
    max_stop_string_length: int = _flag(1024, f"{_LIMIT} the characters of one of stop_strings.")

    @classmethod
    def of(cls, args: Namespace) -> ServerFlags:
        """Read a parsed command line; programs may build an app with fewer arguments.

        Raises:
            ValueError: see `given_or_variable`.
        """
        given = {f.name: getattr(args, f.name) for f in fields(cls) if hasattr(args, f.name)}
        for flag in ("hf_compat", "deterministic", "receipts"):
            given[flag] = given_or_variable(flag, given.get(flag)) or False
        return cls(**given)

    def check(self) -> None:
        """Refuse what counts with hf_compat alone, and is set without it.

        Raises:
            ValueError: names the flag.
        """
        if self.hf_compat:
            return
        for one in fields(self):
            value = getattr(self, one.name)
            if "help" in one.metadata and value != one.default:
                name = one.name.replace("_", "-")
                flag = f"--no-{name}" if value is False else f"--{name}"
                raise ValueError(
                    f"{flag} is about the bodies of --hf-compat: add that flag, or leave this one "
                    "out."
                )


class _Default(int):
    """A ``--shutdown-timeout`` that nobody has chosen."""


def _finish(namespace: Namespace) -> None:
    """Check a command line that was read, and give it hf_compat's ``--shutdown-timeout``.

    Raises:
        ValueError: see `ServerFlags.of` and `ServerFlags.check`.
    """
    flags = ServerFlags.of(namespace)
    flags.check()
    if flags.hf_compat and isinstance(getattr(namespace, "shutdown_timeout", None), _Default):
        namespace.shutdown_timeout = _Default(DRAIN_S)


def _finish_when_parsed(parser: argparse.ArgumentParser) -> None:
    """Let a parser call `_finish` at its end: before, nobody knows what else is on the line."""
    parse = parser.parse_known_args

    def parse_and_finish(*args: Any, **kwargs: Any) -> Any:
        namespace, rest = parse(*args, **kwargs)
        try:
            _finish(namespace)
        except ValueError as error:
            parser.error(str(error))
        return namespace, rest

    parser.parse_known_args = parse_and_finish  # type: ignore[method-assign]


def add_cli_args(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> None:
    """Add the flags to the fork's group of a command line."""
    for flag in fields(ServerFlags):
        if "help" not in flag.metadata:
            continue
        kind: dict[str, Any] = (
            {"action": argparse.BooleanOptionalAction} if flag.default is True else {"type": int}
        )
        group.add_argument(
            f"--{flag.name.replace('_', '-')}",
            default=flag.default,
            help=flag.metadata["help"],
            **kind,
        )
    group.set_defaults(shutdown_timeout=_Default(0))
    _finish_when_parsed(parser)
