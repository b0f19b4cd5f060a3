"""Commands whose output is their answer: no log but errors, and one sentence for what is wrong."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.cli.types import CLISubcommand

if TYPE_CHECKING:
    from vllm.utils.argparse_utils import FlexibleArgumentParser


class UserError(Exception):
    """An error whose sentence is all that a user needs."""


class SentenceCommand(CLISubcommand):
    """A command of ``vllm``, for ``vllm.entrypoints.cli.main``.

    Attributes:
        name: of the command.
        summary: its line in ``vllm --help``.
        description: of its own ``--help``.
        usage: its first line.
        status_of_errors: exit status where a sentence says what is wrong.
    """

    summary: str
    description: str
    usage: str
    status_of_errors = 1

    def add_arguments(self, parser: FlexibleArgumentParser) -> None:
        """Add the command's arguments."""
        raise NotImplementedError

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; return the exit status.

        Raises:
            UserError, ValueError, OSError, RuntimeError: its sentence ends the command.
        """
        raise NotImplementedError

    # vLLM's is a static method, and is read from an object.
    def cmd(self, args: argparse.Namespace) -> None:
        """Run the command, and end the process with its status (``CLISubcommand.cmd``)."""
        try:
            log_errors_only(args)
            status = self.run(args)
        except (UserError, ValueError, OSError, RuntimeError) as error:
            print(f"vllm {self.name}: {_sentence_of(error)}", file=sys.stderr)
            status = self.status_of_errors
        raise SystemExit(status)

    def subparser_init(self, subparsers: argparse._SubParsersAction[Any]) -> FlexibleArgumentParser:
        """As ``CLISubcommand.subparser_init``."""
        parser: FlexibleArgumentParser = subparsers.add_parser(
            self.name,
            help=self.summary,
            description=self.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            usage=self.usage,
        )
        self.add_arguments(parser)
        return parser


def log_errors_only(args: argparse.Namespace) -> None:
    """Let vLLM log errors alone, unless the environment says more.

    Args:
        args: the level is changed in place, where they have vLLM's own options of logging.
    """
    from vllm.logger import configure_logging_from_args

    if "VLLM_LOGGING_LEVEL" not in os.environ:
        os.environ["VLLM_LOGGING_LEVEL"] = args.log_level = "ERROR"
    configure_logging_from_args(args)


def _sentence_of(error: Exception) -> str:
    """Return what is wrong; of an error of the system the file and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}."
    return str(error)
