"""``vllm bulk``: the command."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.cli.types import CLISubcommand

if TYPE_CHECKING:
    from vllm.bulk.journal import Journal
    from vllm.bulk.plan import Plan
    from vllm.bulk.rows import Source
    from vllm.bulk.runner import Runner
    from vllm.utils.argparse_utils import FlexibleArgumentParser

_DESCRIPTION = """Answer a file of requests: JSON lines, Parquet or a dataset on disk.

A row is a line of OpenAI's batches (custom_id, url, body), or holds the fields of a body itself: a
prompt or messages, and what vllm serve takes beside them. The output has a line for each row, in
order. A run that was stopped or killed goes on when the same command is given again.
"""
_INTERRUPTED = 130


class BulkSubcommand(CLISubcommand):
    """Adds ``vllm bulk`` to the command line of vLLM."""

    name = "bulk"

    @staticmethod
    def cmd(args: argparse.Namespace) -> None:
        """Run the command; what is wrong ends it with one sentence."""
        from vllm.bulk.journal import NotWrittenError
        from vllm.bulk.server import EngineEndedError

        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        try:
            status = run(args)
        except (ValueError, NotWrittenError, EngineEndedError) as error:
            raise SystemExit(f"vllm bulk: {error}") from None
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None  # before any row was under way
        raise SystemExit(status)

    def subparser_init(self, subparsers: argparse._SubParsersAction[Any]) -> FlexibleArgumentParser:
        """As ``CLISubcommand.subparser_init``."""
        parser: FlexibleArgumentParser = subparsers.add_parser(
            self.name,
            help="Answer a file of requests, and go on where it was interrupted.",
            description=_DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            usage="vllm bulk INPUT OUTPUT.jsonl --model MODEL [options of the engine]",
        )
        add_arguments(parser)
        return parser


def add_arguments(parser: FlexibleArgumentParser) -> None:
    """Add the command's arguments, and those of ``vllm serve`` that are not about sockets."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import BaseFrontendArgs

    parser.add_argument("input", type=Path, metavar="INPUT", help="what to answer")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="JSON lines")
    parser.add_argument(
        "--max-errors", type=int, help="stop after more rows with errors than these; any number"
    )
    parser.add_argument(
        "--concurrency", type=int, help="requests under way at once; twice --max-num-seqs"
    )
    parser.add_argument("--config", help="a YAML file with options")
    BaseFrontendArgs.add_cli_args(parser)
    AsyncEngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Answer an input; return the exit status.

    Raises:
        ValueError: the input or the output cannot be taken.
        NotWrittenError: the disk took no more.
        EngineEndedError: the engine ended.
    """
    from vllm.bulk.journal import Journal
    from vllm.bulk.output import is_complete, journal_of
    from vllm.bulk.rows import source_of

    _check(args)
    served, source = _as_served(args), source_of(args.input)
    plan = _plan_of(args, source)
    if is_complete(args.output, plan):
        print(f"{args.output} is complete already: {plan.rows:,} rows.")
        return 0
    journal = Journal(journal_of(args.output), plan)
    try:
        return _go_on(args, served, plan, journal, source)
    finally:
        journal.close()


def _check(args: argparse.Namespace) -> None:
    """Raise a ``ValueError`` about an argument."""
    for name in ("concurrency", "max_errors"):
        value, least = getattr(args, name), 1 if name == "concurrency" else 0
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')}={value} is less than {least}.")
    if not args.output.parent.is_dir():
        raise ValueError(f"There is no folder {args.output.parent}: make it first.")
    if args.output.is_dir():
        raise ValueError(f"{args.output} is a folder: name a file.")
    if args.output.exists() and args.input.exists() and args.output.samefile(args.input):
        raise ValueError(f"{args.output} is the input: name another output.")


def _plan_of(args: argparse.Namespace, source: Source) -> Plan:
    from vllm.bulk.plan import Plan
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_arguments(parser)
    return Plan.of(source.survey(), args, parser)


def _go_on(
    args: argparse.Namespace,
    served: argparse.Namespace,
    plan: Plan,
    journal: Journal,
    source: Source,
) -> int:
    """Answer what is missing, and write the output once nothing is; return the exit status."""
    from vllm.bulk.output import journal_of, write_output
    from vllm.bulk.plan import changes
    from vllm.bulk.progress import summary
    from vllm.bulk.rows import Survey

    if found := changes(journal.plan, plan):
        raise ValueError(
            f"the run that began {args.output} differs in {'; '.join(found)}: give the same "
            "command to go on, or name another output."
        )
    begin, before = time.monotonic(), journal.done
    if journal.done < plan.rows:
        with suppress(asyncio.CancelledError):  # told twice to stop
            asyncio.run(_answer(served, journal, source))
    if journal.done < plan.rows:
        return _stopped(args, journal)
    if source.survey() != Survey(plan.input_sha256, plan.rows):
        raise ValueError(
            f"{args.input} was changed while it was answered, so that answers may be wrong: "
            f"remove {journal_of(args.output)} and start again."
        )
    answered = journal.done - before
    write_output(args.output, journal)
    print(summary(journal, args.output, answered, time.monotonic() - begin))
    return 0


async def _answer(args: argparse.Namespace, journal: Journal, source: Source) -> None:
    from vllm.bulk.progress import Progress
    from vllm.bulk.runner import Runner
    from vllm.bulk.server import serving

    async with serving(args) as server:
        with Progress(journal) as progress:
            runner = Runner(
                server.ask,
                journal,
                concurrency=args.concurrency or server.concurrency,
                max_errors=args.max_errors,
                on_answer=progress,
            )
            _stop_when_told(runner)
            await runner.answer(source.rows(journal.is_done))


def _as_served(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with those of ``vllm serve`` that this command does not have.

    Raises:
        ValueError: ``vllm serve`` would refuse them.
    """
    from vllm.entrypoints.launchers.cli_args import FrontendArgs, validate_parsed_serve_args
    from vllm.exceptions import VLLMClientError

    served = {**vars(FrontendArgs()), "api_server_count": 1, **vars(args), "subparser": "serve"}
    namespace = argparse.Namespace(**served)
    try:
        validate_parsed_serve_args(namespace)
    except (TypeError, OSError, VLLMClientError) as error:
        raise ValueError(str(error)) from None
    return namespace


def _stop_when_told(runner: Runner) -> None:
    """Let the first Ctrl-C or SIGTERM end the run in order, and the second at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            loop.add_signal_handler(number, task.cancel)
        print("Stopping once what is under way is answered; again to stop now.", file=sys.stderr)
        runner.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _stopped(args: argparse.Namespace, journal: Journal) -> int:
    missing = journal.plan.rows - journal.done
    why = ""
    if args.max_errors is not None and journal.errors > args.max_errors:
        why = f" {journal.errors:,} errors are more than --max-errors={args.max_errors}."
    print(
        f"Stopped:{why} {journal.done:,} rows are answered, {missing:,} are missing. The same "
        "command goes on with them.",
        file=sys.stderr,
    )
    return 1 if why else _INTERRUPTED
