"""``vllm bulk``: the command."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vllm.fork.sentence_command import SentenceCommand

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

Options of its own, beside those of vllm serve that are not about sockets (--help=all):

    --max-errors N     stop after more rows with errors than these
    --concurrency N    requests under way at once; twice --max-num-seqs
"""
_INTERRUPTED = 130


class BulkCommand(SentenceCommand):
    """Adds ``vllm bulk`` to the command line of vLLM."""

    name = "bulk"
    summary = "Answer a file of requests, and go on where it was interrupted."
    description = _DESCRIPTION
    usage = "vllm bulk INPUT OUTPUT.jsonl --model MODEL [options of the engine]"

    def add_arguments(self, parser: FlexibleArgumentParser) -> None:
        """As ``SentenceCommand.add_arguments``."""
        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """As ``SentenceCommand.run``; Ctrl-C and SIGTERM end it in order."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, until rows run
        try:
            return run(args)
        except KeyboardInterrupt:
            print("Stopped before any row was under way.", file=sys.stderr)
            return _INTERRUPTED


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
    BaseFrontendArgs.add_cli_args(parser)
    AsyncEngineArgs.add_cli_args(parser)
    parser.set_defaults(model=None)  # upstream's is a model of the Hub that nobody has named


def run(args: argparse.Namespace) -> int:
    """Answer an input; return the exit status.

    Raises:
        ValueError: the input or the output cannot be taken.
        NotWrittenError: the disk took no more.
        EngineEndedError: the engine ended.
    """
    from vllm.bulk.journal import Journal
    from vllm.bulk.output import check_names, is_complete, journal_of
    from vllm.bulk.rows import source_of

    _check(args)
    source, served = source_of(args.input), _as_served(args)
    args.output = args.output.resolve()
    check_names(args.output, args.input, Path(args.model))
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
    if args.model is None:
        raise ValueError("name the model: --model MODEL.")
    if not args.output.parent.is_dir():
        raise ValueError(f"There is no folder {args.output.parent}: make it first.")


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
    from vllm.bulk.output import write_output
    from vllm.bulk.plan import changes
    from vllm.bulk.progress import summary

    if found := changes(journal.plan, plan):
        raise ValueError(
            f"the run that began {args.output} differs in {'; '.join(found)}: give the same "
            "command to go on, or name another output."
        )
    if journal.done < plan.rows and args.output.exists():
        raise ValueError(
            f"{args.output} has come there since the run began: move it away, or name another "
            "output."
        )
    if journal.has_more_errors_than(args.max_errors):
        raise ValueError(
            f"{journal.errors:,} rows have an error already: give a higher --max-errors than "
            f"{args.max_errors} to go on."
        )
    begin, before = time.monotonic(), journal.done
    if journal.done < plan.rows:
        with suppress(asyncio.CancelledError):  # told twice to stop
            asyncio.run(_answer(served, journal, source))
    if journal.done < plan.rows or journal.has_more_errors_than(args.max_errors):
        return _stopped(args, journal)
    answered = journal.done - before
    try:
        _check_input(args, journal, source)
        write_output(args.output, journal)
    except KeyboardInterrupt:
        print("Stopped: all rows have an answer. The same command writes them.", file=sys.stderr)
        return _INTERRUPTED
    print(summary(journal, args.output, answered, time.monotonic() - begin))
    return 0


def _check_input(args: argparse.Namespace, journal: Journal, source: Source) -> None:
    """Raise a ``ValueError`` if answers are not those of the rows that the input has now."""
    from vllm.bulk.output import journal_of

    same = sum(journal.is_of(row) for row in source.rows(lambda index: False))
    if same < journal.plan.rows or source.survey().sha256 != journal.plan.input_sha256:
        raise ValueError(
            f"{args.input} was changed while it was answered ({same:,} of {journal.plan.rows:,} "
            f"rows are as they were): remove {journal_of(args.output)} and start again."
        )


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
                receipts=bool(args.receipts),
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
    why, how = "", "The same command"
    if journal.has_more_errors_than(args.max_errors):
        why = f" {journal.errors:,} errors are more than --max-errors={args.max_errors}."
        how += " with a higher --max-errors"
    print(
        f"Stopped:{why} {journal.done:,} rows have an answer or an error, {missing:,} have none. "
        f"{how} goes on with them.",
        file=sys.stderr,
    )
    return 1 if why else _INTERRUPTED
