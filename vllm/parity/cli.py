"""``vllm parity``: the command."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from vllm.fork.sentence_command import SentenceCommand
from vllm.parity.options import BOTH, COMPARE, RECORD, TWIN, add_options, check_options
from vllm.parity.setting import check_model

if TYPE_CHECKING:
    from rich.console import Console

    from vllm.parity.setting import Setting
    from vllm.utils.argparse_utils import FlexibleArgumentParser

_COMMANDS = {"compare": COMPARE, "record": RECORD, "twin": TWIN}
_DESCRIPTION = """Run a model in Hugging Face Transformers and in this vLLM, and tell where the
answers part and why. Without arguments: the bundled model.

    vllm parity [MODEL]             both sides here: tables, and JSON or a page on request
    vllm parity record [MODEL]      one side's answers, to a file
    vllm parity compare A B         two such files, of two machines, say
    vllm parity twin MODEL          its definition, by a small random model; no weights are needed

--help=all lists the options, by the commands that take them.
"""


class ParityCommand(SentenceCommand):
    """Adds ``vllm parity`` to the command line of vLLM."""

    name = "parity"
    summary = "Compare answers with Hugging Face's, and tell why they differ."
    description = _DESCRIPTION
    usage = "vllm parity [record | compare | twin] [MODEL | A B] [options]"

    def add_arguments(self, parser: FlexibleArgumentParser) -> None:
        """As ``SentenceCommand.add_arguments``."""
        parser.add_argument("words", nargs="*", metavar="MODEL", help=argparse.SUPPRESS)
        add_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """As ``SentenceCommand.run``."""
        return _run(args.words, args)


def _run(words: list[str], args: argparse.Namespace) -> int:
    from rich.console import Console
    from transformers.utils import logging as transformers_logging

    from vllm.parity import compare_recordings, compare_with_hf, html, record, terminal

    transformers_logging.set_verbosity_error()
    console = Console()
    command = _COMMANDS.get(words[0], BOTH) if words else BOTH
    check_options(command, args)
    if command == COMPARE:
        if len(words) != 3:
            raise ValueError("compare takes two files: vllm parity compare A B.")
        compared = compare_recordings(*words[1:])
        terminal.show_recordings(compared, console)
        if args.json:
            args.json.write_text(compared.as_json() + "\n")
        if args.html:
            args.html.write_text(html.recordings_page(compared))
        return 0
    if command == TWIN:
        return _run_twin(words[1:], args, console)
    names = words[1:] if command == RECORD else words
    if len(names) > 1:
        raise ValueError(f"there is one model at a time, not {' and '.join(names)}.")
    for name in names:
        check_model(name)
    dtypes = args.dtypes.split(",")
    setting = _setting(names, dtypes[0], args)
    if command == RECORD:
        record(setting, args.side, args.output, args.candidates)
        console.print(f"written: {args.output}")
        return 0
    report = compare_with_hf(setting, args.modes.split(","), dtypes)
    terminal.show(report, console)
    if args.json:
        report.write(args.json)
    if args.html:
        args.html.write_text(html.report_page(report))
    return 0


def _run_twin(names: list[str], args: argparse.Namespace, console: Console) -> int:
    from vllm.parity.definition import compare_definition, definition_as_json, show_definition

    if len(names) != 1:
        raise ValueError("twin takes one model: vllm parity twin MODEL.")
    check_model(names[0])
    answer = compare_definition(
        names[0],
        dtype=args.dtypes,
        is_upstream=args.upstream,
        max_model_len=args.max_model_len,
        remote_code=args.trust_remote_code,
    )
    show_definition(answer, args.dtypes, args.upstream, console)
    if args.json:
        asked = names[0], args.dtypes, args.upstream, args.max_model_len
        args.json.write_text(definition_as_json(answer, *asked) + "\n")
    return 0 if answer.finding.agreement in ("bits", "rounding") else 1


def _setting(names: list[str], dtype: str, args: argparse.Namespace) -> Setting:
    from vllm.parity.setting import PROMPTS, Setting, bundled_model

    prompts = PROMPTS
    if args.prompts:
        try:
            prompts = tuple(line for line in args.prompts.read_text().splitlines() if line)
        except OSError as error:
            raise ValueError(f"--prompts: {error.strerror}: {args.prompts}.") from None
    try:
        generation = json.loads(args.generation)
    except json.JSONDecodeError as error:
        raise ValueError(f"--generation is no JSON object: {error}.") from None
    if not isinstance(generation, dict):
        raise ValueError("--generation is no JSON object.")
    model = names[0] if names else bundled_model()
    return Setting(model, dtype, prompts, args.max_new_tokens, generation, args.trust_remote_code)
