"""Attention in bfloat16: PyTorch's function per request, and the project's kernels.

    python -m benchmarks.attention_kernels [--rounds 20]

Both attend from one token of each request, or from all tokens of a prompt, to the request's own
pages, and have the same bits: that is checked first, and on a CPU where it is not so the engine
does not use the kernel. They are timed by turns in one process; times are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import environment
from vllm.fork_kernels import has_prompt_order, has_token_attention, paged_sdpa, prompt_sdpa

# Requests, tokens of each, heads, heads of keys, size of a head.
TOKENS = [
    (32, 100, 8, 8, 32),
    (1, 200, 9, 3, 64),
    (8, 200, 9, 3, 64),
    (32, 200, 9, 3, 64),
    (32, 500, 32, 4, 64),
    (8, 2000, 32, 8, 128),
]
PROMPTS = [
    (32, 20, 4, 2, 64),
    (32, 64, 4, 2, 64),
    (32, 64, 9, 3, 64),
    (8, 256, 32, 4, 64),
    (1, 512, 32, 8, 128),
    (1, 2048, 32, 8, 128),
]
BLOCK_SIZE = 16

Way = Callable[[], torch.Tensor]


def pages_of(requests: int, tokens: int, kv_heads: int, size: int) -> dict[str, Any]:
    """Return random keys and values in pages, and where they are."""
    blocks = -(-tokens // BLOCK_SIZE)
    return {
        "pages": torch.randn(requests * blocks, kv_heads, BLOCK_SIZE, 2 * size).bfloat16(),
        "blocks": torch.arange(requests * blocks, dtype=torch.int32).view(requests, blocks),
        "key_size": size,
    }


def token_ways(requests: int, tokens: int, heads: int, kv_heads: int, size: int) -> list[Way]:
    """Return PyTorch's function and the kernel, for one token of each request."""
    given = pages_of(requests, tokens, kv_heads, size) | {
        "query": torch.randn(requests, heads, 1, size).bfloat16(),
        "starts": torch.zeros(requests, dtype=torch.int64),
        "stops": torch.full((requests,), tokens),
        "enable_gqa": heads != kv_heads,
    }
    if not has_token_attention(given["query"], given["pages"]):
        raise SystemExit("The kernel needs a CPU with AVX-512.")
    ways: list[dict[str, Any]] = [{"thread_per_request": True}, {"in_one": True}]
    return [partial(paged_sdpa, **given, **way) for way in ways]


def prompt_ways(requests: int, tokens: int, heads: int, kv_heads: int, size: int) -> list[Way]:
    """Return PyTorch's function and the kernel, for whole prompts."""
    rows = requests * tokens
    spans = [(i * tokens, (i + 1) * tokens, i, tokens) for i in range(requests)]
    given = pages_of(requests, tokens, kv_heads, size) | {
        "query": torch.randn(rows, heads, size).bfloat16(),
        "spans": torch.tensor(spans),
        "enable_gqa": heads != kv_heads,
    }
    if not has_prompt_order(tokens, size, torch.bfloat16):
        raise SystemExit("The kernel needs a CPU with AVX-512.")

    def attend(result: torch.Tensor, in_one: bool) -> torch.Tensor:
        prompt_sdpa(**given, result=result, in_one=in_one)
        return result

    return [
        partial(attend, torch.empty(rows, heads, size, dtype=torch.bfloat16), in_one)
        for in_one in (False, True)
    ]


def seconds(ways: list[Way], rounds: int) -> list[float]:
    """Return how long each way takes."""
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, times in zip(ways, found, strict=True):
            begin = time.perf_counter()
            way()
            times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in found]


def table_of(
    title: str, ways: Callable[..., list[Way]], shapes: Sequence[tuple[int, ...]], rounds: int
) -> Table:
    """Return the times of each shape."""
    names = ("requests", "tokens", "heads", "of keys", "size")
    table = Table(*names, "PyTorch's function", "the kernel", "ratio", "same bits", title=title)
    for shape in shapes:
        found = ways(*shape)
        same = torch.equal(*(way() for way in found))
        slow, fast = seconds(found, rounds)
        times = (f"{slow * 1e3:.2f} ms", f"{fast * 1e3:.2f} ms", f"{slow / fast:.1f}")
        table.add_row(*map(str, shape), *times, "yes" if same else "no")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    Console().print(
        environment(torch.device("cpu")),
        table_of("One token of each request", token_ways, TOKENS, rounds),
        table_of("Prompts", prompt_ways, PROMPTS, rounds),
    )


if __name__ == "__main__":
    main()
