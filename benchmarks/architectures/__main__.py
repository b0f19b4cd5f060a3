"""How many answers and logits of each architecture are those of Transformers.

    python -m benchmarks.architectures [TYPE ...] [--again]

Writes docs/architectures.md. What was answered before is kept in build/architectures, so that an
interrupted run goes on where it ended; with --again the types are answered anew. Rows of other
types stay in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

# What every case needs is imported before a process is forked for it.
from tqdm.auto import tqdm

import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_worker  # noqa: F401
from benchmarks.architectures.cases import Case, cases
from benchmarks.architectures.page import Cell, Row, as_markdown, as_text, row_of
from benchmarks.architectures.sides import MODES, Side, plain_side
from tools.definitions.bases import base_of, known_types
from tools.definitions.children import Job, answers
from vllm.parity.machine import machine

ROOT = Path(__file__).resolve().parent.parent.parent
DTYPES = ("float32", "bfloat16")
SIDES = ("hf", "attached", *MODES)
LIMIT_S = 180.0


class Work:
    """A folder with checkpoints and answers.

    Args:
        folder: it is made if it is not there.
        workers: processes at once.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers

    def forget(self, model_type: str) -> None:
        """Remove what there is of a type."""
        for folder in self._folder.glob(f"{model_type}*"):
            if folder.name.split(",")[0] == model_type:
                shutil.rmtree(folder)

    def answer(self, of: Sequence[Case], dtypes: Sequence[str]) -> None:
        """Let each side answer, unless it has."""
        written = [(case, partial(_write, case, self._model(case))) for case in of]
        missing = [(case, job) for case, job in written if not self._model(case).exists()]
        for case, answer in self._run(missing, "checkpoints"):
            if answer.error:
                self._keep(case, "", "hf", asdict(Side(error=answer.error)))
        for (case, dtype, side), answer in self._run([*self._missing(of, dtypes)], "answers"):
            plain = answer.value or asdict(Side(error=f"its process: {answer.error}"))
            self._keep(case, dtype, side, plain)

    def row(self, case: Case, dtype: str) -> Row:
        """Return what was found of a case."""
        own = (case.base.model_type, case.variant, dtype)
        if (failed := self._answers(case, "", "hf")).exists():
            return Row(*own, error=json.loads(failed.read_text())["error"])
        sides = {side: self._answers(case, dtype, side) for side in SIDES}
        return row_of(*own, {side: _read(path) for side, path in sides.items()})

    def _run(self, jobs: Sequence[tuple[Any, Job]], what: str) -> Iterator[tuple[Any, Any]]:
        found = answers(jobs, self._workers, LIMIT_S)
        yield from tqdm(found, total=len(jobs), desc=what)

    def _missing(self, of: Sequence[Case], dtypes: Sequence[str]) -> Iterator[tuple[Any, Job]]:
        for case in of:
            for dtype in dtypes if self._model(case).exists() else ():
                for side in SIDES:
                    if not self._answers(case, dtype, side).exists():
                        job = partial(plain_side, case, self._model(case), side, dtype)
                        yield (case, dtype, side), job

    def _model(self, case: Case) -> Path:
        return self._folder / case.name / "model"

    def _answers(self, case: Case, dtype: str, side: str) -> Path:
        return self._folder / case.name / f"{dtype}-{side}.json"

    def _keep(self, case: Case, dtype: str, side: str, plain: dict[str, Any]) -> None:
        path = self._answers(case, dtype, side)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plain) + "\n")


def _write(case: Case, folder: Path) -> bool:
    """Write a checkpoint, whole or not at all."""
    part = folder.with_name("part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    case.write(part)
    part.rename(folder)
    return True


def _read(path: Path) -> Side:
    return Side(**json.loads(path.read_text()))


def merge(old: list[Row], new: list[Row]) -> list[Row]:
    """Return all rows in order, new ones in place of old ones of their type and dtype."""
    asked = {(row.type, row.dtype) for row in new}
    rows = [row for row in old if (row.type, row.dtype) not in asked] + new
    order = {name: i for i, name in enumerate(known_types())}
    return sorted(rows, key=lambda row: order.get(row.type, len(order)))


def row_of_json(plain: dict[str, Any]) -> Row:
    """Return the row that ``asdict`` made plain."""
    cells = {
        mode: Cell(cell["answers"], cell["logits"], tuple(cell["causes"]))
        for mode, cell in plain["cells"].items()
    }
    return Row(**{**plain, "cells": cells})


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("types", nargs="*", metavar="TYPE", help="Transformers' names; else all")
    parser.add_argument("--again", action="store_true", help="answer these types anew")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "architectures")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "architectures")
    options = parser.parse_args(arguments)
    try:
        options.bases = [base_of(name) for name in options.types]
    except ValueError as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    work = Work(options.work, options.workers)
    for name in options.types if options.again else ():
        work.forget(name)
    asked = list(cases(options.types))
    work.answer(asked, options.dtypes)
    as_json, as_page = options.output.with_suffix(".json"), options.output.with_suffix(".md")
    before = json.loads(as_json.read_text())["rows"] if as_json.exists() else []
    about = as_text(machine())
    new = [work.row(case, dtype) for case in asked for dtype in options.dtypes]
    new = [replace(row, machine=about) for row in new]
    rows = merge([row_of_json(row) for row in before], new)
    as_json.parent.mkdir(parents=True, exist_ok=True)
    as_json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    as_page.write_text(as_markdown(rows))
    print(f"written: {as_page} and {as_json}")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # imported libraries take long to end, and write of what they have not freed
