"""The options of ``vllm parity``, and which of its commands takes each."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

BOTH = "vllm parity [MODEL]"
RECORD = "vllm parity record"
COMPARE = "vllm parity compare"
TWIN = "vllm parity twin"

_MODELS = (BOTH, RECORD, TWIN)
_ANSWERS = (BOTH, RECORD)


@dataclass(frozen=True)
class Option:
    """An option of the command line.

    Attributes:
        name: with its dashes.
        commands: that take it.
        arguments: of ``add_argument``.
    """

    name: str
    commands: tuple[str, ...]
    arguments: dict[str, Any]

    def is_given(self, args: argparse.Namespace) -> bool:
        """Whether it has another value than its default."""
        default = self.arguments.get("default", False if "action" in self.arguments else None)
        return bool(getattr(args, self.name[2:].replace("-", "_"), default) != default)


def _option(name: str, commands: tuple[str, ...], help: str, **arguments: Any) -> Option:
    return Option(name, commands, {"help": help, **arguments})


OPTIONS = (
    _option(
        "--dtypes",
        _MODELS,
        "float32, bfloat16, float16; record and twin take one",
        default="bfloat16",
    ),
    _option("--trust-remote-code", _MODELS, "run the model's code", action="store_true"),
    _option("--json", (BOTH, COMPARE, TWIN), "write the report here, too", type=Path),
    _option("--html", (BOTH, COMPARE), "write one page with plots here, too", type=Path),
    _option("--prompts", _ANSWERS, "a file with a prompt in each line", type=Path),
    _option("--max-new-tokens", _ANSWERS, "tokens of each answer", type=int, default=48),
    _option("--generation", _ANSWERS, 'fields of GenerationConfig, {"top_k": 5}', default="{}"),
    _option(
        "--modes",
        (BOTH,),
        "engines: upstream, hf_compat, exact, deterministic",
        default="upstream,hf_compat",
    ),
    _option("--side", (RECORD,), "to record: hf, or a mode of the engine", default="hf_compat"),
    _option("--output", (RECORD,), "the file", type=Path, default=Path("parity.json")),
    _option(
        "--candidates", (RECORD,), "tokens of each step to record, up to 20", type=int, default=10
    ),
    _option("--upstream", (TWIN,), "compare vLLM's layers without any flag", action="store_true"),
    _option("--max-model-len", (TWIN,), "tokens of the engine's longest text; none: any", type=int),
)


def add_options(parser: FlexibleArgumentParser) -> None:
    """Add the options, grouped by the commands that take them."""
    groups: dict[tuple[str, ...], Any] = {}
    for option in OPTIONS:
        if option.commands not in groups:
            groups[option.commands] = parser.add_argument_group(", ".join(option.commands))
        default = option.arguments.get("default")
        said = option.arguments["help"] + (f" (default: {default})" if default else "")
        groups[option.commands].add_argument(option.name, **option.arguments | {"help": said})


def check_options(command: str, args: argparse.Namespace) -> None:
    """Check that a command takes what it was given.

    Raises:
        ValueError: it does not; or it takes one dtype, and was given several; or a file would be
            written into a folder that is not there.
    """
    for option in OPTIONS:
        if command not in option.commands and option.is_given(args):
            takers = " and ".join(option.commands)
            raise ValueError(f"{option.name} is an option of {takers}, and not of {command}.")
    if command in (RECORD, TWIN) and "," in args.dtypes:
        raise ValueError(f"--dtypes {args.dtypes}: {command} takes one dtype at a time.")
    for file in (args.json, args.html, args.output):
        if file is not None and not file.parent.is_dir():
            raise ValueError(f"{file} cannot be written: there is no folder {file.parent}.")
