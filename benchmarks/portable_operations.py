"""How long do the portable operations take, beside PyTorch's own of the same shape?

The operations with portable bits (``vllm.fork_kernels.portable``) and PyTorch's are timed
alternately in one process, so that a slow moment of the machine hits both; the shapes are those of
a model with 4,096 hidden elements and heads of 128. PyTorch's attention gets keys and values in one
piece, the portable one reads them from a paged cache. That both compute the same is checked first,
within the error of bfloat16. Run it in the environment in which the distribution is installed:

    python -m benchmarks.portable_operations --json portable_operations.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import environment
from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)
from vllm.fork_kernels.portable.functions import Function, portable_gated
from vllm.fork_kernels.portable.logits import portable_log_softmax
from vllm.fork_kernels.portable.norm import portable_rms_norm

HIDDEN, INTERMEDIATE, VOCAB = 4096, 11008, 128256
HEAD_SIZE, BLOCK_SIZE = 128, 32

Operation = Callable[[], torch.Tensor]


@dataclass
class Case:
    """The same computation twice."""

    name: str
    portable: Operation
    torch: Operation


@dataclass
class Result:
    """Medians over all timed calls, in microseconds."""

    name: str
    portable_us: float
    torch_us: float
    ratio: float  # portable / torch


def norm_case(rows: int) -> Case:
    x, weight = torch.randn(rows, HIDDEN).bfloat16(), torch.randn(HIDDEN).bfloat16()
    return Case(
        f"RMSNorm, {rows} x {HIDDEN}",
        lambda: portable_rms_norm(x, weight, 1e-6),
        lambda: torch.nn.functional.rms_norm(x, (HIDDEN,), weight, 1e-6),
    )


def gated_case(rows: int) -> Case:
    x = torch.randn(rows, 2 * INTERMEDIATE).bfloat16()
    gate, factor = x.chunk(2, dim=-1)
    return Case(
        f"SiLU and product, {rows} x {INTERMEDIATE}",
        lambda: portable_gated(x, Function.SILU),
        lambda: torch.nn.functional.silu(gate) * factor,
    )


def attention_case(name: str, tokens: int, queries: int, heads: int, kv_heads: int) -> Case:
    """One sequence; the last tokens are the queries."""
    query = torch.randn(queries, heads, HEAD_SIZE).bfloat16()
    keys, values = (torch.randn(tokens, kv_heads, HEAD_SIZE).bfloat16() for _ in range(2))
    blocks = -(-tokens // BLOCK_SIZE)
    shape = attention_cache_shape(blocks, kv_heads, HEAD_SIZE, BLOCK_SIZE)
    cache = torch.zeros(shape, dtype=torch.uint8)
    pages = torch.randperm(blocks).int()[None]
    positions = torch.arange(tokens)
    slots = pages[0].long()[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    portable_append(keys, values, cache, slots)
    starts, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([0, queries], [tokens]))
    scale = HEAD_SIZE**-0.5
    # Repeated heads, because PyTorch's grouped form is many times slower here.
    shared = heads // kv_heads
    one, two, three = (
        x.transpose(0, 1)[None].contiguous()
        for x in (query, *(x.repeat_interleave(shared, 1) for x in (keys, values)))
    )

    def from_torch() -> torch.Tensor:
        result = torch.nn.functional.scaled_dot_product_attention(
            one, two, three, is_causal=queries > 1
        )
        return result[0].transpose(0, 1)

    return Case(
        f"{name}, {tokens} tokens, {heads} heads, {kv_heads} of keys",
        lambda: portable_attention(query, cache, pages, starts, lengths, scale=scale),
        from_torch,
    )


def log_softmax_case(rows: int) -> Case:
    logits = torch.randn(rows, VOCAB) * 4
    return Case(
        f"log-softmax, {rows} x {VOCAB}",
        lambda: portable_log_softmax(logits),
        lambda: logits.log_softmax(-1),
    )


def make_cases() -> list[Case]:
    torch.manual_seed(0)
    return [
        *(norm_case(rows) for rows in (1, 64)),
        *(gated_case(rows) for rows in (1, 64)),
        attention_case("decode", 2048, 1, 32, 32),
        attention_case("decode", 2048, 1, 32, 8),
        attention_case("prefill", 512, 512, 8, 8),
        attention_case("prefill", 512, 512, 8, 2),
        *(log_softmax_case(rows) for rows in (1, 16)),
    ]


def check_agreement(case: Case) -> None:
    """Both compute the same, as far as bfloat16 goes."""
    torch.testing.assert_close(case.portable(), case.torch(), rtol=3e-2, atol=3e-2)


def time_once(operation: Operation) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def measure(case: Case, seconds: float) -> Result:
    """Time both, alternately, for about so long."""
    sides = {"portable": case.portable, "torch": case.torch}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for operation in sides.values():
        time_once(operation)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times["torch"]) < 5:
        for name, operation in sides.items():
            times[name].append(time_once(operation))
    portable, native = (statistics.median(times[name]) * 1e6 for name in sides)
    return Result(case.name, portable, native, portable / native)


def show(results: list[Result], title: str) -> None:
    """Print the results as a table."""
    table = Table("operation", "portable, us", "PyTorch, us", "ratio", title=title)
    for result in results:
        table.add_row(
            result.name,
            f"{result.portable_us:,.0f}",
            f"{result.torch_us:,.0f}",
            f"{result.ratio:.2f}",
        )
    Console().print(table)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    results = []
    for case in make_cases():
        check_agreement(case)
        results.append(measure(case, arguments.seconds))
    isa = torch.ops.vllm_fork.cpu_isa()
    show(results, f"portable operations, {arguments.threads} thread(s), {isa}")
    if arguments.json:
        machine = {**environment(torch.device("cpu")), "cpu_isa": isa}
        report = {"environment": machine, "results": [asdict(r) for r in results]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
