"""The output and its summary: whole, or not there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm.bulk.journal import Journal, NotWrittenError, sync_folder
from vllm.bulk.plan import Plan, changes

_PART = ".part"


def journal_of(output: Path) -> Path:
    """Return the path of the log of a run that has not ended."""
    return output.with_name(output.name + ".log")


def summary_of(output: Path) -> Path:
    """Return the path of the summary of a run that has ended."""
    return output.with_name(output.name + ".summary.json")


def check_names(output: Path, source: Path, model: Path) -> None:
    """Refuse an output where its files would take the place of others, or change what is read.

    Raises:
        ValueError: names the file, and says what to do.
    """
    if len(os.fsencode(summary_of(output).name + _PART)) > os.pathconf(
        output.parent, "PC_NAME_MAX"
    ):
        raise ValueError(f"{output.name} is too long for the names beside it: name another output.")
    for one in (output, journal_of(output), summary_of(output), _part_of(output)):
        if one.is_dir():
            raise ValueError(f"{one} is a folder: name another output.")
        if one.exists() and one.samefile(source):
            raise ValueError(f"{one} is the input: name another output.")
    for folder in (source, model):
        if folder.is_dir() and output.is_relative_to(folder.resolve()):
            raise ValueError(f"{output} would be a file of {folder}: name an output outside of it.")


def is_complete(output: Path, plan: Plan) -> bool:
    """Return whether a run with this plan has ended already.

    Raises:
        ValueError: the output is something else; says what, and what to do.
    """
    if journal_of(output).exists():
        return False
    before, sha256 = _plan_and_digest(summary_of(output))
    for one in (output, _part_of(output), summary_of(output)):
        if one.exists() and before is None:
            raise ValueError(
                f"{one} exists, and vllm bulk has not written it: name another output, or move it "
                "away."
            )
    if before is None or not output.exists():
        return False
    if found := changes(before, plan):
        raise ValueError(
            f"{output} holds the answers of another run, which differs in {'; '.join(found)}: name "
            "another output, or move this one away."
        )
    with output.open("rb") as file:
        is_as_written = hashlib.file_digest(file, "sha256").hexdigest() == sha256
    if not is_as_written:
        raise ValueError(
            f"{output} was changed since it was written: move it and {summary_of(output).name} "
            "away, and start again."
        )
    return True


def _plan_and_digest(summary: Path) -> tuple[Plan | None, str]:
    """Return the plan that a summary holds, and the SHA-256 of its output; no plan if the summary
    is none of ours, or not there.
    """
    try:
        found = json.loads(summary.read_text())
        return Plan.from_dict(found["plan"]), found.get("output_sha256", "")
    except (OSError, ValueError, KeyError, TypeError):
        return None, ""


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + _PART)


def write_output(output: Path, journal: Journal) -> None:
    """Write the output and its summary from a log that has all answers, and remove the log.

    Raises:
        NotWrittenError: the disk took no more; the log is kept.
    """
    sha256 = _replace(output, journal.lines())
    summary: dict[str, Any] = {
        "rows": journal.plan.rows,
        "errors": journal.errors,
        "prompt_tokens": journal.prompt_tokens,
        "completion_tokens": journal.completion_tokens,
        "output_sha256": sha256,
        "plan": journal.plan.as_dict(),
    }
    _replace(summary_of(output), [json.dumps(summary, indent=1).encode() + b"\n"])
    journal.remove()


def _replace(path: Path, lines: Iterable[bytes]) -> str:
    """Let `path` hold these lines from one moment to the next; return their SHA-256."""
    part, digest = _part_of(path), hashlib.sha256()
    try:
        with part.open("wb") as file:
            for line in lines:
                digest.update(line)
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise NotWrittenError(
            f"{path} could not be written ({error.strerror}): all answers are kept in its log."
        ) from error
    return digest.hexdigest()
