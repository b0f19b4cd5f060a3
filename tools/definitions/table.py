"""Rows as text, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tools.definitions.cases import Row


def row_text(row: Row) -> str:
    """Return a row in a line."""
    case = f"{row.field}={row.value}" if row.field else "base"
    result = f"{row.result}: {row.cause}" if row.result != "equal" else row.result
    notes = [f"proof {row.proof}"] if row.proof else []
    if row.is_silently_other:
        notes.append("SILENTLY OTHER")
    if row.has_effect is False:
        notes.append("no effect")
    if row.is_shown is False:
        notes.append("its twin does not show it")
    if row.names_field is not None and row.field:
        notes.append("names it" if row.names_field else "names another")
    return f"{row.type:20} {case:44} {result}  [{'; '.join(notes)}] {row.seconds:.1f} s"


def summary(rows: Sequence[Row], left_out: Mapping[str, Sequence[str]]) -> str:
    """Return how many rows of each kind there are, and with which proof.

    Args:
        rows: of all cases.
        left_out: fields of types that are read, and for which no other value is known.
    """
    lines = [f"{len(rows)} cases of {len({row.type for row in rows})} types"]
    counts = Counter(row.result for row in rows)
    for result, count in counts.most_common():
        proofs = Counter(_proof(row) for row in rows if row.result == result)
        text = ", ".join(f"{number} {name}" for name, number in proofs.most_common())
        lines.append(f"{count:5} {result} ({text})")
    named = Counter(row.names_field for row in rows if row.result == "refused" and row.field)
    if named[True] or named[False]:
        lines.append(f"{named[True]:5} refusals name the field that was changed")
        lines.append(f"{named[False]:5} name another")
    fields = sorted({name for names in left_out.values() for name in names})
    lines += [f"read, but not tried: {', '.join(fields)}"] if fields else []
    hidden = sum(row.is_shown is False for row in rows)
    lines.append(f"{hidden:5} equal with an effect that their twins do not show")
    silent = [row for row in rows if row.is_silently_other]
    lines.append(f"{len(silent):5} SILENTLY OTHER")
    return "\n".join([*lines, *(f"      {row_text(row)}" for row in silent)])


def _proof(row: Row) -> str:
    if row.proof in ("equal", "other"):
        inert = ", without effect" if row.has_effect is False else ""
        return f"proved {row.proof}{inert}"
    return "without proof"
