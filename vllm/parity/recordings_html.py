"""Two recordings compared, as one page that needs nothing else."""

from __future__ import annotations

from html import escape

from vllm.parity.differences import percent
from vllm.parity.html import document, table
from vllm.parity.recordings import Parting, RecordingsCompared, distances, fact, summary


def page(compared: RecordingsCompared) -> str:
    """Return the HTML: counts, what the machines differ in, and each answer that parts."""
    title = "Two recordings compared"
    facts = [("", (name, *(fact(one) for one in pair))) for name, pair in compared.facts.items()]
    body = [
        f"<h1>{title}</h1>",
        "".join(f"<p>{escape(line)}</p>" for line in summary(compared)),
        "<h2>What they were made with, as far as it differs</h2>",
        table(("", "A", "B"), facts) if facts else "<p>The same machine and setting.</p>",
        "<h2>Where answers part</h2>",
        *(_parting(one, compared.token_texts) for one in compared.partings),
    ]
    if not compared.partings:
        body.append("<p>Nowhere: all answers are equal.</p>")
    return document(title, body)


def _parting(one: Parting, texts: dict[int, str]) -> str:
    rows = [
        (
            found.chosen_by,
            (
                f"{texts[found.token_id]!r} ({found.token_id})",
                percent(found.probability_a) + (" chosen" if found.chosen_by == "a" else ""),
                percent(found.probability_b) + (" chosen" if found.chosen_by == "b" else ""),
            ),
        )
        for found in one.candidates
    ]
    heading = f"Prompt {one.prompt}, token {one.step} after {one.text!r}"
    return (
        f"<h3>{escape(heading)}</h3><p>{escape(distances(one))}</p>"
        f"{table(('token (id)', 'A', 'B'), rows)}"
    )
