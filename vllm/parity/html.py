"""What was compared as one page that needs nothing else; :mod:`.templates` has its words."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from vllm.parity import recordings
from vllm.parity.differences import percent
from vllm.parity.plots import drift_plot, histogram
from vllm.parity.recordings import RecordingsCompared
from vllm.parity.report import Report

_TEMPLATES = Environment(
    loader=PackageLoader("vllm.parity"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {
    "percent": percent,
    "repr": repr,
    "fact": recordings.fact,
    "distances": recordings.distances,
}


def report_page(report: Report) -> str:
    """Return the HTML of a report, with plots of drift by layer and of first differences."""
    drifts = {dtype: drift_plot(report.drift_lines(dtype)) for dtype in report.hf_drift}
    return _TEMPLATES.get_template("report.html.j2").render(
        report=report, drifts=drifts, histogram=histogram(report)
    )


def recordings_page(compared: RecordingsCompared) -> str:
    """Return the HTML: counts, what the machines differ in, and each answer that parts."""
    return _TEMPLATES.get_template("recordings.html.j2").render(
        compared=compared, summary=recordings.summary(compared)
    )
