"""Try hf_compat's check of definitions with every field that a model can have.

    python -m tools.sweep_definitions llama qwen3 --json sweep.json
    python -m tools.sweep_definitions --causes cohere2.attention_bias cohere2.base

For each type of model that Transformers and vLLM define, and each field of its configuration that
Transformers' class reads and that is no size, the configuration of a known checkpoint is tried, and
other values of the field. A row says what an engine in hf_compat does:

    equal          it starts
    refused        vLLM's definition is another function; the module and the field that it names
    not compared   it starts with a warning; why
    no model       Transformers takes no such value

Each row has a proof, too: another small model, whose sizes nothing has made smaller, in an engine
beside `generate()`. A case that is called equal, and is not by its proof, is SILENTLY OTHER, of
which there must be none. A value without effect changes nothing in Transformers' model; one that
its twin does not show is called equal whatever vLLM does with it.

Without --causes a refusal names nothing, and takes seconds instead of a minute.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

# What every case needs is imported before a process is forked for it.
from transformers.utils import logging as transformers_logging

import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_worker  # noqa: F401
from tools.definitions.bases import Base, base_of, native_types
from tools.definitions.cases import Row, examine_case, plan_of
from tools.definitions.children import Job, answers
from tools.definitions.table import row_text, summary

_LIMIT_S = 120.0
_LIMIT_WITH_CAUSES_S = 300.0
_BASE = "base"

Wanted = dict[str, set[str]]
"""Names of fields by types; none for all of them."""


@dataclass
class _Sweep:
    """What was asked for, and what is found."""

    options: argparse.Namespace
    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Seconds of a case."""
        return _LIMIT_WITH_CAUSES_S if self.options.causes else _LIMIT_S

    def run(self, wanted: Wanted) -> None:
        """Try fields of types, and print a row for each value as it comes."""
        for key, answer in answers(self._jobs(wanted), self.options.workers, self.limit):
            row = Row(**answer.value) if answer.value else _lost(key, answer.error)
            self.rows.append(replace(row, seconds=answer.seconds))
            print(row_text(self.rows[-1]), flush=True)
            if self.options.json:
                self.options.json.write_text(json.dumps(self._plain(), indent=1))

    def _jobs(self, wanted: Wanted) -> Iterator[tuple[Any, Job]]:
        for name, fields in wanted.items():
            base = base_of(name)
            changes = self._changes(base) if fields != {_BASE} else []
            for case in [("", ""), *changes]:
                if not fields or (case[0] or _BASE) in fields:
                    yield (name, *case), partial(_plain_row, base, *case, self.options.causes)

    def _changes(self, base: Base) -> list[tuple[str, str]]:
        """Return fields of a type, and labels of their values."""
        job = partial(_plain_plan, base)
        (answer,) = (answer for _, answer in answers([(None, job)], 1, self.limit))
        if answer.value is None:
            print(f"{base.model_type:20} fields are not known: {answer.error}", flush=True)
            return []
        self.left_out[base.model_type] = answer.value["left_out"]
        return [(name, label) for name, label in answer.value["changes"]]

    def _plain(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], "left_out": self.left_out}


def _lost(case: tuple[str, str, str], error: str) -> Row:
    name, field_name, label = case
    return Row(name, field_name, label, "not compared", f"its process: {error}")


def _plain_plan(base: Base) -> dict[str, Any]:
    return asdict(plan_of(base))


def _plain_row(base: Base, name: str, label: str, with_causes: bool) -> dict[str, Any]:
    return asdict(examine_case(base, name, label, with_causes))


def parse_wanted(arguments: Sequence[str]) -> Wanted:
    """Return what TYPE and TYPE.FIELD ask for.

    Raises:
        ValueError: Transformers has no causal language model of a type.
    """
    wanted: Wanted = {}
    for argument in arguments or native_types():
        name, _, one = argument.partition(".")
        base_of(name)
        wanted.setdefault(name, set()).update({one} if one else ())
    return wanted


def _be_quiet() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each case, and their counts; return 1 if one is silently other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wanted", nargs="*", metavar="TYPE", help="TYPE or TYPE.FIELD; else all")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--causes", action="store_true", help="look for causes of differences")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    try:
        wanted = parse_wanted(options.wanted)
    except ValueError as error:
        parser.error(str(error))
    _be_quiet()
    sweep = _Sweep(options)
    sweep.run(wanted)
    print(summary(sweep.rows, sweep.left_out))
    return int(any(row.is_silently_other for row in sweep.rows))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # imported libraries take long to end, and write of what they have not freed
