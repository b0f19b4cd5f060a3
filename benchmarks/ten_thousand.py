"""Ten thousand prompts: Transformers, upstream vLLM, and this vLLM with each flag.

    python -m benchmarks.ten_thousand [MODEL] [--dtype bfloat16] [--counts 1000 10000] [--json FILE]

Prompts of 4 to 400 tokens and greedy answers of 8 to 64, the same for all sides, each of which is a
process of its own that is started in turn, `--rounds` times. Transformers answers a sample in
batches with padding on the left, of the size that is fastest; the seconds for all prompts follow
from the mean of its batches, with twice its standard error. Memory is the most that a side's
processes had for themselves. Answers are compared with Transformers' on the sample; in 16 bits its
own depend on the padding.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from benchmarks.ten_thousand_side import ENGINES, TRANSFORMERS
from tools.make_random_model import make_random_model

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "models" / "tiny-python-llama"

Row = dict[str, Any]


def run_side(side: str, model: str, dtype: str, count: int) -> Row:
    """Return what a side took, with the most memory that its processes had, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        words = [sys.executable, "-m", "benchmarks.ten_thousand_side"]
        process = subprocess.Popen(
            [*words, side, model, dtype, str(count), str(output)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        most = 0
        while process.poll() is None:
            most = max(most, _memory(process.pid))
            time.sleep(0.5)
        if process.returncode:
            raise SystemExit(f"{side} ended with status {process.returncode}")
        return {**json.loads(output.read_text()), "memory": most}


def _memory(pid: int) -> int:
    """Return what a process and all below it have for themselves, in bytes."""
    found = 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for one in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                found += one.memory_full_info().uss
    return found


def extrapolated(result: Row, sample: int, count: int) -> tuple[float, float]:
    """Return the seconds of Transformers for so many prompts, and twice their standard error."""
    batches = result["seconds_of_batches"]
    number = count / result["batch_size"]
    error = statistics.stdev(batches) / math.sqrt(len(batches)) if len(batches) > 1 else math.nan
    return result["seconds"] * count / sample, 2 * error * number


def rows_of(model: str, dtype: str, counts: Sequence[int], sample: int, rounds: int) -> list[Row]:
    """Return a row for each side and count."""
    sides = [side for side in ENGINES if side != "deterministic" or dtype != "float32"]
    reference = run_side(TRANSFORMERS, model, dtype, sample)
    found: list[Row] = []
    for count in counts:
        seconds, error = extrapolated(reference, sample, count)
        tokens = reference["tokens"] * count / sample
        row = {"side": TRANSFORMERS, "count": count, "seconds": seconds, "error": error}
        row |= {"tokens_per_second": tokens / seconds, "memory": reference["memory"]}
        found.append({**row, "batch_size": reference["batch_size"], "equal": sample})
        runs: dict[str, list[Row]] = {side: [] for side in sides}
        for _ in tqdm(range(rounds), desc=f"{count} prompts", leave=False):
            for side in sides:
                runs[side].append(run_side(side, model, dtype, count))
        found += [_row(side, count, runs[side], reference["answers"]) for side in sides]
    return found


def _row(side: str, count: int, runs: list[Row], answers: list[list[int]]) -> Row:
    seconds = statistics.median(one["seconds"] for one in runs)
    equal = sum(map(list.__eq__, runs[0]["answers"], answers))
    return {
        "side": side,
        "count": count,
        "seconds": seconds,
        "tokens_per_second": runs[0]["tokens"] / seconds,
        "memory": max(one["memory"] for one in runs),
        "equal": equal,
    }


def as_table(rows: Sequence[Row], title: str, sample: int) -> Table:
    columns = ("prompts", "side", "seconds", "tokens/s", "to upstream", "GiB", f"equal of {sample}")
    table = Table(*columns, title=title)
    rates = {row["count"]: row["tokens_per_second"] for row in rows if row["side"] == "upstream"}
    for row in rows:
        error = f" ± {row['error']:.0f}" if "error" in row else ""
        table.add_row(
            f"{row['count']:,}",
            row["side"],
            f"{row['seconds']:.0f}{error}",
            f"{row['tokens_per_second']:.0f}",
            f"{row['tokens_per_second'] / rates[row['count']]:.2f}",
            f"{row['memory'] / (1 << 30):.2f}",
            str(row["equal"]),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(BUNDLED))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--sample", type=int, default=256, help="prompts that Transformers answers")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if not Path(model).exists():
            model = folder
            make_random_model(options.model, Path(folder))
        rows = rows_of(model, options.dtype, options.counts, options.sample, options.rounds)
    title = f"{Path(options.model).name}, {options.dtype}"
    Console().print(as_table(rows, title, options.sample))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
