"""Attention of single bfloat16 tokens: PyTorch's function per request, and the project's kernel.

    python -m benchmarks.token_attention [--rounds 20]

Both attend from one token of each request to its own pages, and have the same bits: that is
checked first, and on a CPU where it is not so the engine does not use the kernel. They are timed
by turns in one process; times are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import environment
from vllm.fork_ops import has_token_attention, paged_sdpa

# Requests, heads, heads of keys, size of a head, tokens that each request has.
SHAPES = [
    (32, 8, 8, 32, 100),
    (1, 9, 3, 64, 200),
    (8, 9, 3, 64, 200),
    (32, 9, 3, 64, 200),
    (32, 32, 4, 64, 500),
    (8, 32, 8, 128, 2000),
]
BLOCK_SIZE = 16
WAYS: dict[str, dict[str, Any]] = {
    "PyTorch's function": {"thread_per_request": True},
    "the kernel": {"in_one": True},
}


def arguments(requests: int, heads: int, kv_heads: int, size: int, tokens: int) -> dict[str, Any]:
    """Return arguments of `paged_sdpa`, drawn at random."""
    blocks = -(-tokens // BLOCK_SIZE)
    return {
        "query": torch.randn(requests, heads, 1, size).bfloat16(),
        "pages": torch.randn(requests * blocks, kv_heads, BLOCK_SIZE, 2 * size).bfloat16(),
        "blocks": torch.arange(requests * blocks, dtype=torch.int32).view(requests, blocks),
        "starts": torch.zeros(requests, dtype=torch.int64),
        "stops": torch.full((requests,), tokens),
        "key_size": size,
        "enable_gqa": heads != kv_heads,
    }


def seconds(given: dict[str, Any], rounds: int) -> dict[str, float]:
    """Return how long each of `WAYS` takes."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            begin = time.perf_counter()
            paged_sdpa(**given, **way)
            found[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    table = Table("requests", "heads", "of keys", "size", "tokens", *WAYS, "ratio", "same bits")
    for shape in SHAPES:
        given = arguments(*shape)
        if not has_token_attention(given["query"], given["pages"]):
            raise SystemExit("The kernel needs a CPU with AVX-512.")
        same = torch.equal(*(paged_sdpa(**given, **way) for way in WAYS.values()))
        found = seconds(given, options.rounds)
        slow, fast = found.values()
        times = (f"{slow * 1e3:.2f} ms", f"{fast * 1e3:.2f} ms", f"{slow / fast:.1f}")
        table.add_row(*map(str, shape), *times, "yes" if same else "no")
    Console().print(environment(torch.device("cpu")), table)


if __name__ == "__main__":
    main()
