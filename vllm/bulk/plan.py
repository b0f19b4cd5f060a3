"""What a run answers and how: what must be the same when it goes on."""

from __future__ import annotations

import hashlib
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm.bulk.rows import Survey

_SMALL = 1 << 24  # bytes; of larger files (weights) both ends are looked at
_END = 1 << 20
_LONGEST_PATH = 1000

WITHOUT_INFLUENCE = {
    "input", "output", "max_errors", "concurrency", "subparser", "dispatch_function", "config",
    "enable_log_requests", "enable_log_outputs", "enable_log_deltas", "max_log_len",
    "log_error_stack", "log_config_file", "logging_config", "disable_log_stats",
    "aggregate_engine_logging", "shutdown_timeout", "download_dir", "collect_detailed_traces",
    "otlp_traces_endpoint", "show_hidden_metrics", "hf_token", "log_level",
}  # fmt: skip
"""Arguments with which a run may go on, whatever they were: no answer depends on them."""


@dataclass(frozen=True)
class Plan:
    """A run.

    Attributes:
        input_sha256: of the input's bytes.
        rows: of the input.
        model_sha256: of a model in a folder, see `digest_of_model`; empty for another.
        flags: arguments of the command line that are not the defaults, by name.
        versions: of the packages that decide what an answer is.
    """

    input_sha256: str
    rows: int
    model_sha256: str
    flags: dict[str, str]
    versions: dict[str, str]

    @classmethod
    def of(cls, survey: Survey, args: Namespace, parser: ArgumentParser) -> Plan:
        """Return the plan of a command line."""
        flags = {
            name: _shown(value)
            for name, value in vars(args).items()
            if name not in WITHOUT_INFLUENCE and value != parser.get_default(name)
        }
        return cls(
            survey.sha256,
            survey.rows,
            digest_of_model(Path(args.model)),
            dict(sorted(flags.items())),
            {name: version(name) for name in ("vllm", "transformers", "torch")},
        )

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, in types of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Plan:
        """Return the plan of `as_dict`."""
        return cls(**fields)


def changes(before: Plan, now: Plan) -> list[str]:
    """Return what differs between two plans, a phrase each; nothing if the run can go on."""
    found = []
    if (before.input_sha256, before.rows) != (now.input_sha256, now.rows):
        found.append(
            f"the input ({before.rows} rows, sha256 {before.input_sha256[:12]} before; "
            f"{now.rows} rows, {now.input_sha256[:12]} now)"
        )
    if before.model_sha256 != now.model_sha256:
        found.append("the files of the model")
    for name in sorted(before.flags.keys() | now.flags.keys()):
        old, new = (one.flags.get(name, "not given") for one in (before, now))
        if old != new:
            found.append(f"--{name.replace('_', '-')} ({old} before; {new} now)")
    for name in now.versions:
        old, new = before.versions.get(name, "none"), now.versions[name]
        if old != new:
            found.append(f"the version of {name} ({old} before; {new} now)")
    return found


def _shown(value: Any) -> str:
    """Return the text of an argument, with digests of the files that it names."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    name = value if isinstance(value, str) else getattr(value, "path", None)  # an adapter's
    if not isinstance(name, str) or "\n" in name or len(name) > _LONGEST_PATH:
        return str(value)
    found = digest_of_model(Path(name))
    return f"{value}, sha256 {found[:12]}" if found else str(value)


def digest_of_model(path: Path) -> str:
    """Return a SHA-256 by which another model is known, in a second; "" if there is no such path.

    Names, sizes and contents count; of a file of 16 MiB and more the first and the last MiB.
    """
    if not path.exists():
        return ""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path)} {size}\n".encode())
        with file.open("rb") as stream:
            if size < _SMALL:
                digest.update(stream.read())
            else:
                digest.update(stream.read(_END))
                stream.seek(-_END, 2)
                digest.update(stream.read())
    return digest.hexdigest()
