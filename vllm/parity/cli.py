"""``vllm parity``: the command."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.cli.types import CLISubcommand

if TYPE_CHECKING:
    from rich.console import Console

    from vllm.parity.setting import Setting
    from vllm.utils.argparse_utils import FlexibleArgumentParser

_DESCRIPTION = """Run a model in Hugging Face Transformers and in this vLLM, and tell where the
answers part and why. Without arguments: the bundled model.

    vllm parity [MODEL]             both sides here: tables, and JSON or a page on request
    vllm parity record [MODEL]      one side's answers, to a file
    vllm parity compare A B         two such files, of two machines, say
    vllm parity twin MODEL          its definition, by a small random model; no weights are needed

--help=all lists the options, by the commands that take them.
"""


class ParitySubcommand(CLISubcommand):
    """Adds ``vllm parity`` to the command line of vLLM."""

    name = "parity"

    @staticmethod
    def cmd(args: argparse.Namespace) -> None:
        """Run the command; a wrong argument ends it with one sentence."""
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # the tables are the output
        try:
            _run(args.words, args)
        except ValueError as error:
            raise SystemExit(f"vllm parity: {error}") from None

    def subparser_init(self, subparsers: argparse._SubParsersAction[Any]) -> FlexibleArgumentParser:
        """As ``CLISubcommand.subparser_init``."""
        parser: FlexibleArgumentParser = subparsers.add_parser(
            self.name,
            help="Compare answers with Hugging Face's, and tell why they differ.",
            description=_DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            usage="vllm parity [record | compare | twin] [MODEL | A B] [options]",
        )
        parser.add_argument("words", nargs="*", metavar="MODEL", help=argparse.SUPPRESS)
        _add_options(parser)
        return parser


def _add_options(parser: FlexibleArgumentParser) -> None:
    """Add the options, grouped by the commands that take them."""
    every = parser.add_argument_group("every command", "but for compare, which takes --json alone")
    every.add_argument(
        "--dtypes", default="bfloat16", help="float32, bfloat16, float16; record and twin take one"
    )
    every.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with the model"
    )
    every.add_argument("--json", type=Path, help="write the report here, too; not for record")
    answers = parser.add_argument_group("answers", "what both sides or record generate")
    answers.add_argument("--prompts", type=Path, help="a file with a prompt in each line")
    answers.add_argument("--max-new-tokens", type=int, default=48)
    answers.add_argument(
        "--generation", default="{}", help='fields of GenerationConfig, {"top_k": 5}'
    )
    sides = parser.add_argument_group("both sides", "vllm parity [MODEL]; --html for compare, too")
    sides.add_argument(
        "--modes",
        default="upstream,hf_compat",
        help="engines: upstream, hf_compat, exact, deterministic",
    )
    sides.add_argument("--html", type=Path, help="write one page with plots here, too")
    record = parser.add_argument_group("record", "vllm parity record [MODEL]")
    record.add_argument(
        "--side", default="hf_compat", help="to record: hf, or a mode of the engine"
    )
    record.add_argument("--output", type=Path, default=Path("parity.json"), help="the file")
    record.add_argument(
        "--candidates", type=int, default=10, help="tokens of each step to record, up to 20"
    )
    twin = parser.add_argument_group("twin", "vllm parity twin MODEL")
    twin.add_argument(
        "--upstream", action="store_true", help="compare vLLM's layers without any flag"
    )
    twin.add_argument(
        "--max-model-len", type=int, help="tokens of the engine's longest text; none: any"
    )


def _run(words: list[str], args: argparse.Namespace) -> None:
    from rich.console import Console
    from transformers.utils import logging as transformers_logging

    from vllm.parity import (
        compare_recordings,
        compare_with_hf,
        html,
        record,
        recordings_html,
        terminal,
    )

    transformers_logging.set_verbosity_error()
    console = Console()
    if words[:1] == ["compare"]:
        if len(words) != 3:
            raise ValueError("compare takes two files: vllm parity compare A B.")
        compared = compare_recordings(*words[1:])
        terminal.show_recordings(compared, console)
        if args.json:
            args.json.write_text(compared.as_json() + "\n")
        if args.html:
            args.html.write_text(recordings_html.page(compared))
        return
    if words[:1] == ["twin"]:
        _run_twin(words[1:], args, console)
        return
    is_recording = words[:1] == ["record"]
    names = words[1:] if is_recording else words
    if len(names) > 1:
        raise ValueError(f"there is one model at a time, not {' and '.join(names)}.")
    dtypes = args.dtypes.split(",")
    setting = _setting(names, dtypes[0], args)
    if is_recording:
        record(setting, args.side, args.output, args.candidates)
        console.print(f"written: {args.output}")
        return
    report = compare_with_hf(setting, args.modes.split(","), dtypes)
    terminal.show(report, console)
    if args.json:
        report.write(args.json)
    if args.html:
        args.html.write_text(html.page(report))


def _run_twin(names: list[str], args: argparse.Namespace, console: Console) -> None:
    from vllm.parity.definition import compare_definition, show_definition

    if len(names) != 1:
        raise ValueError("twin takes one model: vllm parity twin MODEL.")
    dtype = args.dtypes.split(",")[0]
    answer = compare_definition(
        names[0],
        dtype=dtype,
        is_upstream=args.upstream,
        max_model_len=args.max_model_len,
        remote_code=args.trust_remote_code,
    )
    show_definition(answer, dtype, console)
    if args.json:
        args.json.write_text(answer.as_json() + "\n")
    if answer.finding.agreement not in ("bits", "rounding"):
        raise SystemExit(1)


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
