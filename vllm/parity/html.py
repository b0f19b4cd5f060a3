"""A report as one page that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from vllm.parity.differences import percent
from vllm.parity.drift import LOGITS
from vllm.parity.report import Report, Run

WIDTH, HEIGHT, MARGIN = 640, 260, 46
COLORS = ("#4878a8", "#c8553d", "#588157", "#8a5fa8", "#b08900", "#3d8b8b", "#777777")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
       color: #222; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .25rem .7rem;
       border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
tr.a td { background: #e7f1e7 } tr.b td { background: #f8e6e2 } svg text { font-size: 11px }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 }
       th, td { border-color: #444 } tr.a td { background: #20361f }
       tr.b td { background: #43241d } svg text { fill: #ccc } }
"""


def page(report: Report) -> str:
    """Return the HTML of a report, with plots of drift by layer and of first differences."""
    setting = report.setting
    title = f"Parity of {setting.model}"
    plots = [
        f"<h2>Drift of hidden states in {dtype}</h2>{_drift_plot(report, dtype)}"
        for dtype in report.hf_drift
    ]
    causes = "".join(
        f"<p><b>{run.name}</b>: {escape(run.cause)}</p>" for run in report.runs if run.cause
    )
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(setting.prompts)} prompts x {setting.max_new_tokens} tokens; {escape(facts)}</p>",
        _summary(report),
        causes,
        *plots,
        "<h2>Where answers part</h2>",
        _histogram(report),
        *(_candidates(report, run) for run in report.runs),
    ]
    return document(title, body)


def document(title: str, body: Sequence[str]) -> str:
    """Return a page of its own with a title, of parts that are HTML."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><body>{''.join(body)}</body></html>\n"
    )


def table(header: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return a table; each row has a class and its cells."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for kind, cells in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _summary(report: Report) -> str:
    rows = [
        (
            "",
            (
                run.name,
                f"{run.num_equal} of {len(run.comparisons)}",
                f"{run.share_of_bits:.2%}",
                f"{run.max_difference:.2g}",
                "-"
                if run.first_layer is None
                else f"{run.first_layer} {run.first_operation or ''}",
            ),
        )
        for run in report.runs
    ]
    header = (
        "engine",
        "answers equal",
        "equal bits",
        "largest difference",
        "first layer to differ",
    )
    return table(header, rows)


def _candidates(report: Report, run: Run) -> str:
    parts = []
    for prompt, one in zip(report.setting.prompts, run.comparisons, strict=True):
        if one.first_difference is None:
            continue
        rows = [
            (
                candidate.chosen_by,
                (
                    str(candidate.token_id),
                    repr(report.token_texts[candidate.token_id]),
                    percent(candidate.probability_a),
                    percent(candidate.probability_b),
                ),
            )
            for candidate in one.candidates
        ]
        heading = f"{run.name}: token {one.first_difference} after {prompt!r}"
        parts.append(f"<h3>{escape(heading)}</h3>")
        parts.append(table(("id", "token", "Hugging Face", "this vLLM"), rows))
    return "".join(parts)


def _drift_plot(report: Report, dtype: str) -> str:
    """Largest differences by layer and of the logits, on a logarithmic scale; equal bits have no
    point.
    """
    lines = report.drift_lines(dtype)
    values = [one.maximum for line in lines.values() for one in line if one.maximum > 0]
    if not values:
        return "<p>None: all layers have equal bits.</p>"
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    high = max(high, low + 1)
    num = max(len(line) for line in lines.values())
    step = max(1, num // 12)

    def x(layer: int) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * layer / max(num - 1, 1)

    def y(value: float) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (math.log10(value) - low) / (high - low)

    parts = [
        f'<text x="4" y="{y(10.0**power):.1f}">1e{power}</text>'
        f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y(10.0**power):.1f}" '
        f'y2="{y(10.0**power):.1f}" stroke="#8884"/>'
        for power in range(low, high + 1)
    ]
    for color, line in zip(COLORS, lines.values(), strict=False):
        points = [(x(i), y(one.maximum)) for i, one in enumerate(line) if one.maximum > 0]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{color}"/>' for px, py in points
        ]
    parts += [
        f'<text x="{x(i):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{name}</text>'
        for i, name in [*((i, str(i)) for i in range(0, num - 1, step)), (num - 1, LOGITS)]
    ]
    caption = "<p>Largest absolute difference, by layer; lines of equal bits have no points.</p>"
    return caption + _svg(parts) + _legend(list(lines))


def _histogram(report: Report) -> str:
    """How many answers part in each tenth of their length."""
    if all(run.num_equal == len(run.comparisons) for run in report.runs):
        return "<p>Nowhere: all answers are equal.</p>"
    num_bins, length = 10, report.setting.max_new_tokens
    counts = {
        run.name: [
            sum(
                one.first_difference is not None
                and min(one.first_difference * num_bins // length, num_bins - 1) == b
                for one in run.comparisons
            )
            for b in range(num_bins)
        ]
        for run in report.runs
    }
    highest = max(max(bins) for bins in counts.values())
    slot = (WIDTH - 2 * MARGIN) / num_bins
    bar = slot * 0.85 / len(counts)
    scale = (HEIGHT - 2 * MARGIN) / highest
    parts = []
    for i, (color, bins) in enumerate(zip(COLORS, counts.values(), strict=False)):
        for b, count in enumerate(bins):
            left, height = MARGIN + b * slot + i * bar, count * scale
            parts.append(
                f'<rect x="{left:.1f}" y="{HEIGHT - MARGIN - height:.1f}" width="{bar:.1f}" '
                f'height="{height:.1f}" fill="{color}"><title>{count}</title></rect>'
            )
    parts += [
        f'<text x="{MARGIN + b * slot:.1f}" y="{HEIGHT - MARGIN + 16}">'
        f"{b * length // num_bins}</text>"
        for b in range(num_bins)
    ]
    parts.append(f'<text x="4" y="{MARGIN}">{highest}</text>')
    caption = "<p>Answers, by the place of the first token that differs.</p>"
    return caption + _svg(parts) + _legend(list(counts))


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%">{"".join(parts)}</svg>'


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<span style="color:{color}">&#9632;</span> {escape(name)} &nbsp; '
        for color, name in zip(COLORS, names, strict=False)
    )
    return f"<p>{items}</p>"
