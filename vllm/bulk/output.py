"""The output and its summary: whole, or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm.bulk.journal import Journal, NotWrittenError, sync_folder
from vllm.bulk.plan import Plan, changes


def journal_of(output: Path) -> Path:
    """Return the path of the log of a run that has not ended."""
    return output.with_name(output.name + ".log")


def summary_of(output: Path) -> Path:
    """Return the path of the summary of a run that has ended."""
    return output.with_name(output.name + ".summary.json")


def is_complete(output: Path, plan: Plan) -> bool:
    """Return whether a run with this plan has ended already.

    Raises:
        ValueError: the output is something else; says what, and what to do.
    """
    if journal_of(output).exists() or not output.exists():
        return False
    if not summary_of(output).exists():
        raise ValueError(
            f"{output} exists, and vllm bulk has not written it: name another output, or move it "
            "away."
        )
    before = Plan.from_dict(json.loads(summary_of(output).read_text())["plan"])
    if found := changes(before, plan):
        raise ValueError(
            f"{output} holds the answers of another run, which differs in {'; '.join(found)}: name "
            "another output, or move this one away."
        )
    return True


def write_output(output: Path, journal: Journal) -> None:
    """Write the output and its summary from a log that has all answers, and remove the log.

    Raises:
        NotWrittenError: the disk took no more; the log is kept.
    """
    summary: dict[str, Any] = {
        "rows": journal.plan.rows,
        "errors": journal.errors,
        "prompt_tokens": journal.prompt_tokens,
        "completion_tokens": journal.completion_tokens,
        "plan": journal.plan.as_dict(),
    }
    _replace(output, journal.lines())
    _replace(summary_of(output), [json.dumps(summary, indent=1).encode() + b"\n"])
    journal.remove()


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    """Let `path` hold these lines from one moment to the next."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise NotWrittenError(
            f"{path} could not be written ({error.strerror}): all answers are kept in its log."
        ) from error
