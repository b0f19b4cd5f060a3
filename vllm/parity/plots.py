"""Where the lines and bars of a report's plots are; a template draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm.parity.differences import Comparison
from vllm.parity.drift import LOGITS, LayerDrift
from vllm.parity.report import Report

WIDTH, HEIGHT, MARGIN = 640, 260, 46
NUM_BINS = 10
MOST_LABELS = 12
COLORS = ("#4878a8", "#c8553d", "#588157", "#8a5fa8", "#b08900", "#3d8b8b", "#777777")


@dataclass(frozen=True)
class Label:
    """A text beside an axis, at its place along it."""

    place: float
    text: str


@dataclass(frozen=True)
class Point:
    """A point of a line, or the upper left corner of a bar, and the number that it stands for."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Series:
    """A line, or bars of one color, with its name in the legend."""

    name: str
    color: str
    points: list[Point]


@dataclass(frozen=True)
class Plot:
    """A plot of `WIDTH` x `HEIGHT`, with `MARGIN` around it.

    Attributes:
        series: as in the legend.
        x_labels: below it.
        y_labels: left of it.
        bar: how wide a bar is; 0 for lines.
    """

    series: list[Series]
    x_labels: list[Label]
    y_labels: list[Label]
    bar: float = 0.0

    width: int = WIDTH
    height: int = HEIGHT
    margin: int = MARGIN


def drift_plot(lines: Mapping[str, Sequence[LayerDrift]]) -> Plot | None:
    """Return largest differences by layer and of the logits, on a logarithmic scale.

    Equal bits have no point, and there is no plot where all bits are equal.
    """
    values = [one.maximum for line in lines.values() for one in line if one.maximum > 0]
    if not values:
        return None
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    high = max(high, low + 1)
    last = max(map(len, lines.values())) - 1

    def x(layer: int) -> float:
        return round(MARGIN + (WIDTH - 2 * MARGIN) * layer / max(last, 1), 1)

    def y(power: float) -> float:
        return round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (power - low) / (high - low), 1)

    series = []
    for color, (name, line) in zip(COLORS, lines.items(), strict=False):
        points = [
            Point(x(i), y(math.log10(one.maximum)), f"{one.maximum:.2g}")
            for i, one in enumerate(line)
            if one.maximum > 0
        ]
        series.append(Series(name, color, points))
    layers = range(0, last, max(1, (last + 1) // MOST_LABELS))
    return Plot(
        series,
        [*(Label(x(i), str(i)) for i in layers), Label(x(last), LOGITS)],
        [Label(y(power), f"1e{power}") for power in range(low, high + 1)],
    )


def histogram(report: Report) -> Plot | None:
    """Return how many answers part in each tenth of their length; None where all are equal."""
    length = report.setting.max_new_tokens
    counts = {run.name: _counts(run.comparisons, length) for run in report.runs}
    highest = max(max(bins) for bins in counts.values())
    if not highest:
        return None
    slot = (WIDTH - 2 * MARGIN) / NUM_BINS
    bar = slot * 0.85 / len(counts)
    scale = (HEIGHT - 2 * MARGIN) / highest
    series = []
    for i, (color, (name, bins)) in enumerate(zip(COLORS, counts.items(), strict=False)):
        lefts = [round(MARGIN + b * slot + i * bar, 1) for b in range(NUM_BINS)]
        tops = [round(HEIGHT - MARGIN - count * scale, 1) for count in bins]
        points = [Point(*one) for one in zip(lefts, tops, map(str, bins), strict=True)]
        series.append(Series(name, color, points))
    starts = [
        Label(round(MARGIN + b * slot, 1), str(b * length // NUM_BINS)) for b in range(NUM_BINS)
    ]
    return Plot(series, starts, [Label(MARGIN, str(highest))], round(bar, 1))


def _counts(comparisons: Sequence[Comparison], length: int) -> list[int]:
    counts = [0] * NUM_BINS
    for one in comparisons:
        if one.first_difference is not None:
            counts[min(one.first_difference * NUM_BINS // length, NUM_BINS - 1)] += 1
    return counts
