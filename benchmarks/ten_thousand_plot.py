"""Draws what `benchmarks.ten_thousand` has measured.

    python -m benchmarks.ten_thousand_plot FILE.json [FILE.json ...] --output PLOT.svg

One panel for each file: seconds for so many prompts, on logarithmic axes, a line for each side.
Needs Matplotlib, which the extra [eval] installs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COLOURS = {
    "Transformers": "#b45309",
    "upstream": "#6b7280",
    "hf_compat": "#1d4ed8",
    "exact": "#7c3aed",
    "deterministic": "#047857",
}


def draw(panels: dict[str, list[dict[str, Any]]], output: Path) -> None:
    """Write the plot.

    Args:
        panels: rows of `benchmarks.ten_thousand`, by the title of their panel.
        output: a file whose ending says which format.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ten thousand"  # the same file from the same numbers
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 3.6), sharey=True, squeeze=False
    )
    for axis, (title, rows) in zip(axes[0], panels.items(), strict=True):
        for side, colour in COLOURS.items():
            own = [row for row in rows if row["side"] == side]
            if own:
                counts, seconds = zip(*((row["count"], row["seconds"]) for row in own), strict=True)
                axis.plot(counts, seconds, marker="o", color=colour, label=side)
        axis.set(title=title, xscale="log", yscale="log", xlabel="prompts")
        axis.grid(visible=True, which="major", color="#e5e7eb")
    axes[0][0].set_ylabel("seconds")
    axes[0][-1].legend(frameon=False, fontsize="small")
    figure.tight_layout()
    figure.savefig(output, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="of --json; its name is the title")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    panels = {file.stem.replace("-", " "): json.loads(file.read_text()) for file in options.files}
    draw(panels, options.output)


if __name__ == "__main__":
    main()
