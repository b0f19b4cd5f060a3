"""The stages `bits` and `bench`: what is measured, and in which order.

    python -m benchmarks.gpu.stages bits|bench [--device cuda] [--models 1B 8B] [--minutes 9]

Only what has no values yet is run; the table says what was not run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.gpu.engines import MODES
from benchmarks.gpu.measurements import RESULTS, ROOT, Measurement, Results, run_missing
from benchmarks.gpu.model_bits import DTYPES, WAYS
from benchmarks.gpu.report import bench_tables, bits_table
from benchmarks.machine import environment

MODELS = ROOT / "build" / "gpu" / "models"
_PACKAGE = "benchmarks.gpu."


def bits(device: str) -> Iterator[Measurement]:
    """Yield what shows whether the device has the specification's bits."""
    on = ("--device", device)
    for what in ("self-check", "operations"):
        yield Measurement(what, f"{_PACKAGE}digests", (what, *on), 120)
    for dtype in DTYPES:
        for way in WAYS:
            arguments = (way, "--dtype", dtype, *on)
            yield Measurement(f"{way}, {dtype}", f"{_PACKAGE}model_bits", arguments, 180)


def bench(device: str, models: Sequence[str], tokens: int, rounds: int) -> Iterator[Measurement]:
    """Yield what is timed: kernels, engines and servers, each for all models."""
    on = ("--device", device)
    size = ("--tokens", str(tokens), "--rounds", str(rounds))
    arguments: tuple[str, ...]
    for model in models:
        for what in ("products", "attention"):
            arguments = (what, model, *on, "--rounds", str(10 * rounds))
            yield Measurement(f"{what}, {model}", f"{_PACKAGE}kernels", arguments, 150)
    for model in models:
        folder = str(MODELS / model)
        yield Measurement(f"model, {model}", f"{_PACKAGE}models", (model, folder, *on), 180)
        for mode in (*MODES, "transformers"):
            arguments = (mode, folder, *on, *size)
            yield Measurement(f"engine, {model}, {mode}", f"{_PACKAGE}engines", arguments, 240)
    for model in models:
        for mode in MODES:
            arguments = (mode, str(MODELS / model), *size)
            yield Measurement(f"server, {model}, {mode}", f"{_PACKAGE}server", arguments, 300)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=["bits", "bench"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", default=["1B", "8B"])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=float(os.environ.get("MINUTES") or 9), help="of this call"
    )
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no GPU here: run this on a GPU machine, or --device cpu.")
    if options.stage == "bits":
        measurements = list(bits(options.device))
    else:
        measurements = list(bench(options.device, options.models, options.tokens, options.rounds))
    machine = environment(torch.device(options.device))
    out = os.environ.get("OUT")
    results = Results(RESULTS / f"{options.stage}.json", machine, Path(out) if out else None)
    run_missing(measurements, results, 60 * options.minutes)
    tables = bits_table if options.stage == "bits" else bench_tables
    for table in tables([one.name for one in measurements], results.of):
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
