"""How long does a linear layer take with the portable product, and with PyTorch's products?

    python -m benchmarks.portable_product [--json FILE]

* ours: ``vllm.fork_kernels.portable.product`` with bfloat16 activations, weight and result;
* bf16: ``torch.nn.functional.linear`` of the same;
* packed: the same product of oneDNN with a weight that was reordered for it once, which is
  what upstream's CPU backend does at load time; where PyTorch has that;
* fp32: ``torch.nn.functional.linear`` in float32, the other way to get more than bfloat16's bits.

All are timed alternately in one process, so that a slow moment of the machine hits all; ratios are
medians of the rounds' own ratios. Each side goes round so many copies of its weight that they do
not stay in a cache, as the layers of a model do not. The accuracy is checked first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional
from tqdm.auto import tqdm

from benchmarks.machine import environment
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)

PORTABLE = "ours"
REFERENCE = "bf16"
MAX_ERROR = 3e-3  # relative, after rounding to bfloat16


@dataclass
class Result:
    """Times of one shape and batch: medians in microseconds, and of the rounds' ratios.

    Attributes:
        rows: of activations.
        out_features: rows of the weight.
        in_features: its columns.
        rounds: how often each side was timed.
        times_us: of each side.
        ratios: the portable product's time divided by each other side's.
        gigabytes_per_s: at which the portable product reads its weight.
    """

    rows: int
    out_features: int
    in_features: int
    rounds: int
    times_us: dict[str, float]
    ratios: dict[str, float]
    gigabytes_per_s: float


class Layer:
    """Copies of one layer's weight in the form of each side.

    Args:
        out_features: rows of the weight.
        in_features: its columns.
        working_set: bytes that the copies of a bfloat16 weight take at least.
    """

    def __init__(self, out_features: int, in_features: int, working_set: int) -> None:
        generator = torch.Generator().manual_seed(0)
        weight = (torch.randn(out_features, in_features, generator=generator) * 0.02).bfloat16()
        self.weight = weight
        copies = range(math.ceil(working_set / (weight.numel() * weight.element_size())))
        exponents = equalising_exponents(channel_statistics(weight))
        self.packed: list[PackedWeight] = [pack_weight(weight, exponents) for _ in copies]
        self.bf16 = [weight.clone() for _ in copies]
        self.fp32 = [weight.float() for _ in copies]

    def sides(self, x: torch.Tensor) -> dict[str, Callable[[int], torch.Tensor]]:
        """What is timed; each takes the number of a call, which chooses the copy."""
        x_fp32 = x.float()
        count = len(self.packed)
        sides: dict[str, Callable[[int], torch.Tensor]] = {
            PORTABLE: lambda i: portable_product(x, self.packed[i % count]),
            REFERENCE: lambda i: functional.linear(x, self.bf16[i % count]),
            "fp32": lambda i: functional.linear(x_fp32, self.fp32[i % count]),
        }
        if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            reorder = torch.ops.mkldnn._reorder_linear_weight
            linear = torch.ops.mkldnn._linear_pointwise
            reordered = [reorder(copy, len(x)) for copy in self.bf16]
            sides["packed"] = lambda i: linear(x, reordered[i % count], None, "none", [], "")
        return sides


def check_accuracy(layer: Layer) -> None:
    """All sides compute the same product, up to rounding."""
    x = torch.randn(3, layer.weight.shape[1], generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = x.double() @ layer.weight.double().T
    for name, side in layer.sides(x).items():
        error = float((side(0).double() - exact).norm() / exact.norm())
        if error > MAX_ERROR:
            raise AssertionError(f"{name} is off by {error:.1e}")


def measure(layer: Layer, rows: int, seconds: float) -> Result:
    """Time all sides, alternately, for about so many seconds and at least five rounds."""
    out_features, in_features = layer.weight.shape
    generator = torch.Generator().manual_seed(rows)
    sides = layer.sides(torch.randn(rows, in_features, generator=generator).bfloat16())
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side(0)  # warms up
    end = time.perf_counter() + seconds
    for number in itertools.count(1):
        for name, side in sides.items():
            start = time.perf_counter()
            side(number)
            times[name].append(time.perf_counter() - start)
        if number >= 5 and time.perf_counter() > end:
            break
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {
        name: statistics.median(
            ours / theirs for ours, theirs in zip(times[PORTABLE], values, strict=True)
        )
        for name, values in times.items()
        if name != PORTABLE
    }
    return Result(
        rows,
        out_features,
        in_features,
        len(times[PORTABLE]),
        {name: 1e6 * value for name, value in medians.items()},
        ratios,
        layer.packed[0].packed.numel() / medians[PORTABLE] / 1e9,
    )


def show(results: list[Result]) -> None:
    """Print times in milliseconds, and the portable product's as multiples of the others'."""
    sides = list(results[0].times_us)
    title = f"linear layers, ms, {torch.get_num_threads()} thread(s), {cpu_isa()}"
    ratios = [f"/ {name}" for name in results[0].ratios]
    table = Table("weight", "rows", *sides, *ratios, "GB/s", title=title)
    for result in results:
        table.add_row(
            f"{result.out_features}x{result.in_features}",
            str(result.rows),
            *(f"{result.times_us[name] / 1e3:,.2f}" for name in sides),
            *(f"{ratio:.2f}" for ratio in result.ratios.values()),
            f"{result.gigabytes_per_s:.1f}",
        )
    Console().print(table)


def cpu_isa() -> str:
    """The instruction set that the portable product uses."""
    return str(torch.ops.vllm_fork.cpu_isa())


def shape(text: str) -> tuple[int, int]:
    """``4096x1024`` as out_features and in_features."""
    out_features, in_features = map(int, text.split("x"))
    return out_features, in_features


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    shapes = ["1536x512", "2048x2048", "4096x4096"]
    parser.add_argument("--shapes", type=shape, nargs="+", default=[shape(s) for s in shapes])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=5.0, help="for each shape and batch")
    parser.add_argument("--working-set", type=int, default=128, help="MiB of bfloat16 weights")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    results: list[Result] = []
    for out_features, in_features in arguments.shapes:
        layer = Layer(out_features, in_features, arguments.working_set << 20)
        check_accuracy(layer)
        bar = tqdm(arguments.rows, desc=f"{out_features} x {in_features}", leave=False)
        results += [measure(layer, rows, arguments.seconds) for rows in bar]
    show(results)
    if arguments.json:
        report = {
            "environment": {
                **environment(torch.device("cpu")),
                "cpu_isa": cpu_isa(),
            },
            "results": [asdict(result) for result in results],
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
