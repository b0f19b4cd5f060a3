"""Kernels of deterministic mode beside PyTorch's of the same shape, on a device.

    python -m benchmarks.gpu.times ceilings|products|attention ... [--rows 2048] [--rounds 10]

Shapes are Llama-3.1-8B's. Ceilings are what this GPU reaches at all: a copy, in TB/s of reads and
writes, and a product of 8,192 x 8,192 x 8,192 in bfloat16, in TFLOP/s. Products are those of a
layer's matrices in bfloat16, with few rows as in decoding and many as in prompts; PyTorch's are
cuBLAS'. In decoding they are timed after a norm, too, which makes the rows' digits. Attention is
causal over one prompt, or of one token of each of some requests; PyTorch's is
``scaled_dot_product_attention``, once by cuDNN and once by FlashAttention, with keys and values in
one piece.

On a GPU a CUDA graph of some calls is timed by its events, so that what a launch costs the CPU does
not count, as it does not in an engine with graphs. All sides take turns. Printed are medians of a
call in microseconds, as JSON, again after each shape.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.cases import paged_cache
from benchmarks.gpu.shapes import SHAPES, linear_shapes
from vllm.fork_kernels.portable.attention import portable_attention
from vllm.fork_kernels.portable.norm import portable_rms_norm
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)

DECODE_ROWS = (1, 8, 64, 256)
PROMPT_ROWS = (2048, 8192)
PROMPTS = (2048, 8192)
DECODES = ((8, 2048), (64, 2048))
"""Requests, and tokens of each."""
CALLS = 20
"""In a graph, of shapes of decoding; of prompts, a quarter as many."""
MAX_ERROR = 1e-2
"""Relative, of bfloat16 results: another formula would be far above it."""

RIVALS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}

AFTER_NORMS = ("qkv", "gate_up")
"""Matrices."""

MOST_LETTERS = 150
"""Of why a rival does not take a shape."""

WARM_UPS = 3
"""Times that do not count."""

WORKING_SET = 200 << 20
"""Bytes of weights that calls go round, so that no cache keeps them, as in a model of layers."""

Side = Callable[[int], torch.Tensor]
"""Computes; the number of the call chooses a copy of the weight."""

Timings = Iterator[tuple[str, dict[str, Any]]]
"""Names of shapes, and all sides' microseconds."""


class Timed:
    """Calls of one side, whose time is taken together.

    Args:
        side: what is called.
        device: that computes.
        calls: how many; on a CPU, one.
    """

    def __init__(self, side: Side, device: torch.device, calls: int) -> None:
        self._side = side
        self._calls = calls if device.type == "cuda" else 1
        self._number = 0
        self._graph = self._captured() if device.type == "cuda" else None

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Return a graph of the calls, each with the next copy of the weight."""
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # what is only done at first is not to be captured
            for number in range(3):
                self._side(number)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(self._calls):
                self._side(number)
        return graph

    def microseconds(self) -> float:
        """Run all calls, and return the time of one."""
        if self._graph is None:
            start = time.perf_counter()
            self._side(self._number)
            self._number += 1
            return 1e6 * (time.perf_counter() - start)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / self._calls


def compare(
    sides: dict[str, Side], device: torch.device, rounds: int, calls: int
) -> dict[str, Any]:
    """Return the medians of all sides' times, in turns, after a check that they compute the same.

    With 0 rounds each side computes once, so that a profiler sees it. What goes wrong is returned
    as {"failure": a sentence}: other shapes may be timed.
    """
    try:
        ours, refused = sides["portable"](0).float(), {}
        for name in set(sides) - {"portable"}:
            try:
                theirs = in_rows(sides[name](0).float(), ours.shape)
            except RuntimeError as error:  # a backend may not take the shape
                refused[name] = f"{error}"[:MOST_LETTERS]
                continue
            distance = float((ours - theirs).norm() / theirs.norm())
            if not distance < MAX_ERROR:
                return {"failure": f"{name} differs by {distance:.1e} of its size"}
        if not rounds:
            return {}
        timed = {
            name: Timed(side, device, calls) for name, side in sides.items() if name not in refused
        }
        times: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(rounds + WARM_UPS):
            for name, one in timed.items():
                times[name].append(one.microseconds())
    except RuntimeError as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    medians = {name: round(statistics.median(all_[WARM_UPS:]), 2) for name, all_ in times.items()}
    return {**medians, **refused}


def in_rows(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return results in our order: PyTorch's attention has [requests, heads, queries, size]."""
    return x.transpose(1, 2).reshape(shape) if x.dim() == 4 else x


def numbers(*shape: int, device: torch.device, salt: int = 0) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(sum(shape) + salt)
    return torch.randn(shape, generator=generator, device=device).bfloat16()


def products(name: str, device: torch.device, rounds: int, counts: Sequence[int]) -> Timings:
    """Time the products of all matrices of a layer; keys are "matrix, rows"."""
    for matrix, (out_features, in_features) in linear_shapes(name).items():
        weight = numbers(out_features, in_features, device=device) * in_features**-0.5
        copies = math.ceil(WORKING_SET / (2 * weight.numel())) if device.type == "cuda" else 1
        exponents = equalising_exponents(channel_statistics(weight))
        packed = [pack_weight(weight, exponents) for _ in range(copies)]
        weights = [weight.clone() for _ in range(copies)]
        for rows in counts:
            x = numbers(rows, in_features, device=device)
            sides: dict[str, Side] = {
                "portable": lambda i, x=x, w=packed: portable_product(x, w[i % len(w)]),  # type: ignore[misc]
                "torch": lambda i, x=x, w=weights: functional.linear(x, w[i % len(w)]),  # type: ignore[misc]
            }
            calls = CALLS if rows in DECODE_ROWS else CALLS // 4
            yield f"{matrix}, {rows}", compare(sides, device, rounds, calls)
            if matrix in AFTER_NORMS and rows in DECODE_ROWS:
                sides = after_norm(x, packed, weights)
                yield f"norm and {matrix}, {rows}", compare(sides, device, rounds, calls)


def after_norm(
    x: torch.Tensor, packed: list[PackedWeight], weights: list[torch.Tensor]
) -> dict[str, Side]:
    """Return both sides for the product of normed rows."""
    scale = torch.ones(x.shape[1], dtype=x.dtype, device=x.device)

    def portable(i: int) -> torch.Tensor:
        weight = packed[i % len(packed)]
        return portable_product(portable_rms_norm(x, scale, consumer=weight), weight)

    def theirs(i: int) -> torch.Tensor:
        normed = functional.rms_norm(x, scale.shape, scale, 1e-6)
        return functional.linear(normed, weights[i % len(weights)])

    return {"portable": portable, "torch": theirs}


def attention(name: str, device: torch.device, rounds: int, counts: Sequence[int]) -> Timings:
    """Time attention; keys are "prompt, tokens" and "decode, requests x tokens"."""
    for tokens in (one for one in PROMPTS if one in counts):
        sides = attention_sides(name, 1, tokens, tokens, device)
        yield f"prompt, {tokens}", compare(sides, device, rounds, CALLS // 4)
    for requests, tokens in (one for one in DECODES if one[0] in counts):
        sides = attention_sides(name, requests, tokens, 1, device)
        yield f"decode, {requests} x {tokens}", compare(sides, device, rounds, CALLS)


def attention_sides(
    name: str, requests: int, tokens: int, queries: int, device: torch.device
) -> dict[str, Side]:
    """Return both sides for requests of so many tokens, the last of which are queries."""
    shape = SHAPES[name]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    size = shape["hidden_size"] // heads
    query = numbers(requests * queries, heads, size, device=device)
    keys, values = (
        numbers(requests * tokens, kv_heads, size, device=device, salt=salt) for salt in (1, 2)
    )
    cache, pages = paged_cache(keys, values, [tokens] * requests)
    starts = torch.arange(requests + 1, dtype=torch.int32, device=device) * queries
    lengths = torch.full((requests,), tokens, dtype=torch.int32, device=device)
    q, k, v = (
        x.view(requests, -1, x.shape[1], size).transpose(1, 2).contiguous()
        for x in (query, keys, values)
    )

    def portable(_: int) -> torch.Tensor:
        return portable_attention(query, cache, pages, starts, lengths, scale=size**-0.5)

    def by(backend: SDPBackend, _: int) -> torch.Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=queries > 1, enable_gqa=True
            )

    rivals = RIVALS if device.type == "cuda" else {"torch": SDPBackend.MATH}
    return {"portable": portable, **{name: partial(by, one) for name, one in rivals.items()}}


def ceilings(name: str, device: torch.device, rounds: int, counts: Sequence[int]) -> Timings:
    """Time a copy and a large product."""
    size = 8192 if device.type == "cuda" else 256
    a, b = (numbers(size, size, device=device, salt=salt) for salt in (1, 2))
    source = torch.zeros(4 * size * size, device=device)
    target = torch.empty_like(source)
    copied = Timed(lambda _: target.copy_(source), device, 4)
    multiplied = Timed(lambda _: functional.linear(a, b), device, 4)
    seconds = [
        1e-6 * statistics.median(one.microseconds() for _ in range(rounds + WARM_UPS))
        for one in (copied, multiplied)
    ]
    yield "copy, TB/s", {"torch": round(2e-12 * source.nbytes / seconds[0], 2)}
    yield "product, TFLOP/s", {"torch": round(2e-12 * size**3 / seconds[1], 1)}


WHAT: dict[str, Callable[[str, torch.device, int, Sequence[int]], Timings]] = {
    "ceilings": ceilings,
    "products": products,
    "attention": attention,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="+", choices=WHAT)
    parser.add_argument("--shape", choices=SHAPES, default="8B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rows", type=int, nargs="+", default=[*DECODE_ROWS, *PROMPT_ROWS])
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for what in options.what:
        timed = WHAT[what](
            options.shape, torch.device(options.device), options.rounds, options.rows
        )
        for shape, times in timed:
            found[f"{what}: {shape}"] = times
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
