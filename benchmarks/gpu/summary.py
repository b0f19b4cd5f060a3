"""The results of ``benchmarks/gpu/run.sh`` as a table, and the sentence that says what to do next.

    python3 benchmarks/gpu/summary.py build/gpu/results

Uses the standard library alone, and takes files that are cut short or missing. results.json in the
folder gets all values.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NEEDED = (
    *("probes", "bits: start", "bits: operations", "bits: shapes", "bits: draws", "bits: engine"),
    *("bits: engine with graphs", "bits: attached model", "bits: exact"),
)
"""Steps that must find all bits equal before anything else is worth measuring."""

UNCOUNTED = ("unpack", "probes")
"""Steps that end well or do not; of others, results are counted."""

MEMORY_ERRORS = "9"
"""The status of memcheck (--error-exitcode) when it has found some."""

_ERROR = re.compile(r"\b\w+(?:Error|Exception): .*")
_NO_CAUSE = "Engine core initialization failed"
"""An engine's own process writes the cause, and the one that waits for it only that it failed."""

MOST_NAMES = 4
LOADS = ("1", "64", "prompt")
"""Of engines: answers at once, and a prompt that is read."""

MATRICES = ("qkv", "o", "gate_up", "down")


def last_values(text: str) -> dict[str, Any]:
    """Return the last line that is an object of JSON; {} if there is none."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(json.JSONDecodeError):
            if line.startswith("{") and isinstance(found := json.loads(line), dict):
                return found
    return {}


def steps(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what became of each step: name, status, seconds, values, error."""
    file = folder / "steps.tsv"
    for line in file.read_text(errors="replace").splitlines() if file.exists() else []:
        name, status, seconds, *_ = [*line.split("\t"), "", ""]
        if not seconds.isdigit():  # the line is cut short
            continue
        stem = re.sub("[^a-z0-9]", "-", name)
        texts = {}
        for kind in ("out", "err"):
            path = folder / f"{stem}.{kind}"
            texts[kind] = path.read_text(errors="replace") if path.exists() else ""
        yield {
            "name": name,
            "status": status,
            "seconds": int(seconds),
            "values": last_values(texts["out"]),
            "error": None if status == "0" else error_of(status, texts["err"]),
        }


def error_of(status: str, errors: str) -> str:
    """Return how a step ended, in a few words."""
    if status == "no time":
        return "no time was left"
    if status in ("124", "137"):
        return "it was ended at its limit"
    with contextlib.suppress(ValueError):  # no signal has that number
        errors += f"\nit was ended by {signal.Signals(int(status) - 128).name}"
    causes = [one for one in _ERROR.findall(errors) if _NO_CAUSE not in one]
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return (causes or lines or [f"status {status}, and no message"])[-1][:200]


def cell(step: dict[str, Any]) -> str:
    """Return what the table says of a step."""
    values = step["values"]
    if "of" not in values:
        said = {name: one for name, one in values.items() if not isinstance(one, dict)}
        text = json.dumps(said) if said else ""
        return f"{step['error'] or 'done'} {text}".strip()
    text = f"{values['equal']} of {values['of']} equal"
    if "answers" in values:
        text += f", {values['equal answers']} of {values['answers']} answers"
    for name, other in values.items():
        if name.startswith("beside "):
            text += f"; {Path(name[7:]).stem}: {other['equal']} of {other['of']}"
    if names := list(values["differing"]):
        text += f"; not {', '.join(names[:MOST_NAMES])}{' ...' if len(names) > MOST_NAMES else ''}"
    if "during" in values:
        text += f"; ended during {values['during']}"
    is_whole = "during" not in values
    has_counted = step["status"] == "1" and is_whole and values["equal"] != values["of"]
    return text if step["status"] == "0" or has_counted else f"{text}; {step['error']}"


def ratios(times: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield times beside PyTorch's: of a layer's products by rows, of each attention."""
    found = {name: one for name, one in times.items() if isinstance(one, dict)}
    counts = {name.rsplit(", ", 1)[1] for name in found if name.startswith("products: ")}
    for rows in sorted(counts, key=int):
        layer = [found.get(f"products: {matrix}, {rows}", {}) for matrix in MATRICES]
        if all(isinstance(one.get("torch"), float) for one in layer):
            ours, theirs = (sum(one[side] for one in layer) for side in ("portable", "torch"))
            yield (
                f"a layer's products / cuBLAS, rows: {rows}",
                f"{ours / theirs:.2f} ({ours:.0f} us)",
            )
    for name, one in found.items():
        if name.startswith("attention: ") and "portable" in one:
            rivals = [f"{one['portable'] / time:.2f} / {rival}" if isinstance(time, float)
                      else f"{rival}: {time}" for rival, time in one.items()
                      if rival != "portable"]  # fmt: skip
            yield name, f"{', '.join(rivals)} ({one['portable']:.0f} us)"
        elif name.startswith("ceilings: "):
            yield name.removeprefix("ceilings: "), str(one.get("torch", one))
        elif "failure" in one:
            yield name, one["failure"]


def engine_ratios(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield engines' rates, and the plain one's beside them: 2 is twice as long."""
    plain = found.get("engine: plain", {}).get("values", {})
    for name, step in found.items():
        if not name.startswith("engine: ") or not step["values"]:
            continue
        for load, rate in step["values"].items():
            if load in LOADS and rate:
                ratio = f" ({plain[load] / rate:.2f} x as long as plain)" if load in plain else ""
                yield f"{name}, {load}", f"{rate} tokens/s{ratio}"


def to_mend(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the names of the steps for whose sake the machine is given back."""
    if "unpack" in found and not _is_good(found["unpack"]):
        return ["unpack"]
    needed = NEEDED if set(NEEDED) & found.keys() or "counters" not in found else ()
    wrong = [name for name in needed if name not in found or not _is_good(found[name])]
    has_errors = found.get("memcheck", {}).get("status") == MEMORY_ERRORS
    return [*wrong, *(["memcheck"] if has_errors else [])]


def _is_good(step: dict[str, Any]) -> bool:
    """Of most steps what is counted counts: an engine may die when it is to end."""
    if step["name"] in UNCOUNTED:
        return bool(step["status"] == "0")
    values = step["values"]
    has_all = values.get("of", 0) > 0 and values.get("equal") == values["of"]
    return has_all and "during" not in values


def advice(found: dict[str, dict[str, Any]]) -> str:
    """Return the sentence that says what to do next."""
    if wrong := to_mend(found):
        return f"give back, mend: {', '.join(wrong)}"
    if "counters" not in found:
        return "all bits equal: call 2"
    if set(NEEDED) & found.keys():
        return "both calls are done: keep the numbers"
    return "call 2 ran on a machine without the results of call 1: keep the numbers"


def print_rows(name: str, rows: Iterator[tuple[str, str]]) -> None:
    """Print rows of the table, made as they are printed; what is odd is told, and others follow."""
    try:
        for row, text in rows:
            print(f"| {row} | {text} |")
    except Exception as error:  # the sentence at the end has to be printed
        print(f"| {name} | cannot be shown: {type(error).__name__}: {error} |")


def main() -> None:
    folder = Path(sys.argv[1])
    found = {step["name"]: step for step in steps(folder)}
    with contextlib.suppress(OSError):
        (folder / "results.json").write_text(json.dumps(list(found.values()), indent=1) + "\n")
    print("| | |\n| --- | --- |")
    for name, step in found.items():
        print_rows(name, ((name, cell(one)) for one in [step]))
    for name in ("times", "times in turn"):
        values = found.get(name, {}).get("values", {})
        print_rows(name, ((f"{name}: {row}", text) for row, text in ratios(values)))
    print_rows("engines", engine_ratios(found))
    print(f"\n{advice(found)}")
    sys.exit(bool(to_mend(found)))


if __name__ == "__main__":
    main()
