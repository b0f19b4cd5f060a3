"""``vllm audit``: the command."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.fork.sentence_command import SentenceCommand

if TYPE_CHECKING:
    from vllm.receipts.file import Claim
    from vllm.receipts.verdict import Verdict
    from vllm.utils.argparse_utils import FlexibleArgumentParser

_DESCRIPTION = """Compute answers with receipts again, one prefill each, and say of each whether it
is what its receipt says, or what differs first: the model, the flags, the prompt, the parameters,
the logits of a token, the token that was chosen of them, or the end.

FILE has a JSON object in each line: an answer of vllm bulk or of the server, or a receipt.
Options of its own, beside those of an engine (--help=all):

    --sample SHARE     audit each answer with this probability instead of all
    --sample-seed N    of that choice, which another run repeats; drawn anew without it
    --json             a JSON object for each answer instead of a line of text
"""


class AuditCommand(SentenceCommand):
    """Adds ``vllm audit`` to the command line of vLLM; status 1 says that an answer differs."""

    name = "audit"
    summary = "Check answers by their receipts."
    description = _DESCRIPTION
    usage = "vllm audit FILE [--sample SHARE] [--model MODEL] [options of the engine]"
    status_of_errors = 2

    def add_arguments(self, parser: FlexibleArgumentParser) -> None:
        """As ``SentenceCommand.add_arguments``."""
        from vllm.engine.arg_utils import EngineArgs

        parser.add_argument("file", type=Path, metavar="FILE", help="answers, as JSON lines")
        parser.add_argument("--sample", type=float, default=1.0, metavar="SHARE")
        parser.add_argument("--sample-seed", type=int, metavar="N")
        parser.add_argument("--json", action="store_true")
        EngineArgs.add_cli_args(parser)
        parser.set_defaults(model=None)  # the receipts name one

    def run(self, args: argparse.Namespace) -> int:
        """As ``SentenceCommand.run``."""
        return run(args)


def run(args: argparse.Namespace) -> int:
    """Audit a file; return the exit status, 0 if all is as the receipts say.

    Raises:
        ValueError: an argument, or a file in which there is nothing to audit.
    """
    from vllm.receipts import verdict
    from vllm.receipts.file import claims_of

    if not 0 < args.sample <= 1:
        raise ValueError(f"--sample={args.sample} is no share: give more than 0 and at most 1.")
    seed = args.sample_seed if args.sample_seed is not None else random.randrange(1 << 32)
    first = next((one for one in claims_of(args.file) if verdict.of_form(one) is None), None)
    found: Counter[str] = Counter()
    unanswered = 0

    def answers() -> Iterator[Claim]:
        nonlocal unanswered
        for claim in claims_of(args.file):
            unanswered += not claim.has_answer
            if claim.has_answer:
                yield claim

    begin = time.monotonic()
    for one in _verdicts(args, first, _sampled(answers(), args.sample, seed)):
        found[one.differs] += 1
        line = json.dumps(asdict(one)) if args.json else printable(f"{one.place}: {one.sentence}")
        print(line, flush=True)
    if not found:
        raise ValueError(
            f"{args.file} has no answers{'' if args.sample == 1 else ' in this sample'}."
        )
    share = f", --sample-seed {seed}" if args.sample < 1 else ""
    others = ", ".join(f"{count} by {name}" for name, count in sorted(found.items()) if name)
    print(
        f"{found.total()} audited{share}: {found['']} equal, {found.total() - found['']} differ"
        f"{f' ({others})' if others else ''}; "
        f"{f'{unanswered} rows without an answer; ' if unanswered else ''}"
        f"{time.monotonic() - begin:.0f} s",
        file=sys.stderr if args.json else sys.stdout,
    )
    return 0 if found.total() == found[""] else 1


def printable(text: str) -> str:
    """Return a text of one line without what moves or colours a terminal's; files have any."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _sampled(claims: Iterable[Claim], share: float, seed: int) -> Iterator[Claim]:
    """Yield each of `claims` with probability `share`."""
    numbers = random.Random(seed)
    return (one for one in claims if share == 1 or numbers.random() < share)


def _verdicts(
    args: argparse.Namespace, first: Claim | None, claims: Iterator[Claim]
) -> Iterator[Verdict]:
    """Yield the verdicts; without any receipt that could be true there is no engine."""
    from vllm.receipts import verdict

    if first is None:
        for claim in claims:
            found = verdict.of_form(claim)
            assert found is not None
            yield found
        return
    from vllm.receipts.audit import audit

    yield from audit(_engine(args, first), claims)


def _engine(args: argparse.Namespace, first: Claim) -> Any:
    """Return the engine of the first receipt's flags, as far as the command names no others.

    Raises:
        ValueError: it cannot be, or there is no such model.
    """
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.receipts.audit import engine_arguments

    assert first.receipt is not None
    args.model = args.model or first.receipt["model"].get("name")
    if not args.model:
        raise ValueError("the first receipt names no model: name it, --model MODEL.")
    given, defaults = vars(EngineArgs.from_cli_args(args)), vars(EngineArgs(model=args.model))
    chosen = {name: value for name, value in given.items() if value != defaults[name]}
    return LLM(**{**engine_arguments(first.receipt), **chosen, "model": args.model})
