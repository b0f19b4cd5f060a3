"""Kernels of deterministic mode beside PyTorch's of the same shape, on a device.

    python -m benchmarks.gpu.kernels products 1B --device cuda
    python -m benchmarks.gpu.kernels attention 8B --device cuda

Products are those of a layer's matrices in bfloat16, with few rows as in decoding and many as in
prompts; PyTorch's are cuBLAS'. In decoding they are timed after a norm, too, which makes the rows'
digits. Attention is causal over one prompt, or of one token of each of some requests; PyTorch's
(``scaled_dot_product_attention``) gets keys and values in one piece. Both sides take turns, on GPUs
timed by its events; printed are medians in microseconds, as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu.models import SHAPES, linear_shapes
from vllm.fork_ops.portable_attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)
from vllm.fork_ops.portable_norm import portable_rms_norm
from vllm.fork_ops.portable_product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)

DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64)
PROMPT_ROWS = (512, 2048, 8192)
CONTEXTS = (512, 2048, 8192)
BATCHES = (1, 8, 32)
BLOCK_SIZE = 16
MAX_ERROR = 1e-2
"""Relative, of bfloat16 results: another formula would be far above it."""

AFTER_NORMS = ("qkv", "gate_up")
"""Matrices."""

WORKING_SET = 200 << 20
"""Bytes of weights that calls go round, so that no cache keeps them, as in a model of layers."""

Side = Callable[[int], torch.Tensor]
"""Computes; the number of the call chooses a copy of the weight."""


def microseconds(side: Side, number: int, device: torch.device) -> float:
    """Return the time of one call."""
    if device.type != "cuda":
        start = time.perf_counter()
        side(number)
        return 1e6 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    side(number)
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


def compare(sides: dict[str, Side], device: torch.device, rounds: int) -> dict[str, float]:
    """Return the medians of both sides' times, in turns, after a check that both compute the same.

    Raises:
        AssertionError: they do not.
    """
    ours, theirs = (side(0).float() for side in sides.values())
    error = float((ours - theirs).norm() / theirs.norm())
    if not error < MAX_ERROR:
        raise AssertionError(f"the results differ by {error:.1e} of their size")
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 3):
        for name, side in sides.items():
            times[name].append(microseconds(side, number, device))
    return {name: round(statistics.median(all_[3:]), 2) for name, all_ in times.items()}


def numbers(*shape: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=device).bfloat16()


def products(name: str, device: torch.device, rounds: int) -> dict[str, Any]:
    """Time the products of all matrices of a layer; keys are "matrix, rows"."""
    found: dict[str, Any] = {}
    for matrix, (out_features, in_features) in linear_shapes(name).items():
        weight = numbers(out_features, in_features, device=device) * in_features**-0.5
        copies = math.ceil(WORKING_SET / (2 * weight.numel())) if device.type == "cuda" else 1
        exponents = equalising_exponents(channel_statistics(weight))
        packed = [pack_weight(weight, exponents) for _ in range(copies)]
        weights = [weight.clone() for _ in range(copies)]
        for rows in DECODE_ROWS + PROMPT_ROWS:
            x = numbers(rows, in_features, device=device)
            sides: dict[str, Side] = {
                "portable": lambda i, x=x, w=packed: portable_product(x, w[i % len(w)]),  # type: ignore[misc]
                "torch": lambda i, x=x, w=weights: functional.linear(x, w[i % len(w)]),  # type: ignore[misc]
            }
            found[f"{matrix}, {rows}"] = compare(sides, device, rounds)
            if matrix in AFTER_NORMS and rows in DECODE_ROWS:
                sides = after_norm(x, packed, weights)
                found[f"norm and {matrix}, {rows}"] = compare(sides, device, rounds)
    return found


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


def attention(name: str, device: torch.device, rounds: int) -> dict[str, Any]:
    """Time attention; keys are "prompt, tokens" and "decode, requests x tokens"."""
    found = {}
    for tokens in CONTEXTS:
        sides = attention_sides(name, 1, tokens, tokens, device)
        found[f"prompt, {tokens}"] = compare(sides, device, rounds)
        for requests in BATCHES:
            sides = attention_sides(name, requests, tokens, 1, device)
            found[f"decode, {requests} x {tokens}"] = compare(sides, device, rounds)
    return found


def attention_sides(
    name: str, requests: int, tokens: int, queries: int, device: torch.device
) -> dict[str, Side]:
    """Return both sides for requests of so many tokens, the last of which are queries."""
    shape = SHAPES[name]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    size = shape["hidden_size"] // heads
    query = numbers(requests * queries, heads, size, device=device)
    keys, values = (numbers(requests * tokens, n, size, device=device) for n in (kv_heads,) * 2)
    blocks = tokens // BLOCK_SIZE
    cache = torch.zeros(
        attention_cache_shape(requests * blocks, kv_heads, size, BLOCK_SIZE),
        dtype=torch.uint8,
        device=device,
    )
    pages = torch.arange(requests * blocks, dtype=torch.int32, device=device).view(requests, blocks)
    portable_append(keys, values, cache, torch.arange(requests * tokens, device=device))
    starts = torch.arange(requests + 1, dtype=torch.int32, device=device) * queries
    lengths = torch.full((requests,), tokens, dtype=torch.int32, device=device)
    q, k, v = (
        x.view(requests, -1, x.shape[1], size).transpose(1, 2).contiguous()
        for x in (query, keys, values)
    )

    def portable(_: int) -> torch.Tensor:
        return portable_attention(query, cache, pages, starts, lengths, scale=size**-0.5)

    def theirs(_: int) -> torch.Tensor:
        done = functional.scaled_dot_product_attention(
            q, k, v, is_causal=queries > 1, enable_gqa=True
        )
        return done.transpose(1, 2).reshape(query.shape)

    return {"portable": portable, "torch": theirs}


WHAT = {"products": products, "attention": attention}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    device = torch.device(options.device)
    print(json.dumps(WHAT[options.what](options.model, device, options.rounds)))


if __name__ == "__main__":
    main()
