"""The operations of deterministic mode at a real model's shapes: a device's bits beside the CPU's.

    python -m benchmarks.gpu.real_shapes 8B --device cuda

Both are computed in this process, and compared bit for bit: the products of all matrices of a layer
with 1 to 3,000 rows, from numbers and from digits that norms and activations make; attention over
1,100 and 5,000 tokens, in decoding and in prompts; norms, rotary embeddings and the vocabulary's
operations. Printed is JSON, again after each part.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.differences import Comparison
from benchmarks.gpu.kernels import paged_cache
from benchmarks.gpu.models import SHAPES, linear_shapes
from vllm.fork_ops.portable_attention import portable_attention
from vllm.fork_ops.portable_functions import Function, portable_gated
from vllm.fork_ops.portable_logits import portable_argmax, portable_log_softmax, portable_top_k
from vllm.fork_ops.portable_norm import portable_rms_norm
from vllm.fork_ops.portable_product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
    unpack_weight,
)
from vllm.fork_ops.portable_rotary import portable_rotate, rotary_frequencies, rotary_table
from vllm.fork_ops.portable_sampling import portable_draw, portable_filter

ROWS = (1, 5, 8, 16, 17, 32, 64, 65, 96, 97, 200, 1537, 3000)
"""Around the sizes of tiles, and more than are multiplied at once."""

OFTEN = 5
"""Results between two lines that are printed."""

ROWS_WITH_DIGITS = tuple(rows for rows in ROWS if rows <= 1536)

REQUESTS = {
    "decode": [(1100, 1), (5000, 1), (17, 1)],
    "prompt": [(1100, 1100)],
    "end of a prompt": [(5000, 512)],
    "all of these": [(1100, 1), (300, 300), (5000, 64), (64, 1)],
}
"""Tokens of each request, and how many of them, the last ones, attend."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""A tensor of the device and the CPU's."""

Found = Iterator[tuple[str, Pair]]


class Sides:
    """The same numbers on both.

    Args:
        device: beside the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def numbers(self, *shape: int, salt: int = 0, dtype: torch.dtype = torch.bfloat16) -> Pair:
        """Return normal numbers, on the device and on the CPU."""
        generator = torch.Generator().manual_seed(sum(shape) + salt)
        return self.of(torch.randn(shape, generator=generator).to(dtype))

    def of(self, on_cpu: torch.Tensor) -> Pair:
        return on_cpu.to(self.device, copy=True), on_cpu  # some operations write to theirs


def both(compute: Callable[..., torch.Tensor], *pairs: Pair) -> Pair:
    """Return what a function makes of the device's tensors, and of the CPU's."""
    here, there = zip(*pairs, strict=True)
    return compute(*here), compute(*there)


def packed(weight: torch.Tensor) -> PackedWeight:
    return pack_weight(weight, equalising_exponents(channel_statistics(weight)))


def products(name: str, sides: Sides) -> Found:
    """Each matrix of a layer, and one that is split otherwise on GPUs of 132 multiprocessors."""
    hidden, inner = SHAPES[name]["hidden_size"], SHAPES[name]["intermediate_size"]
    for matrix, (outputs, inputs) in {**linear_shapes(name), "gate": (inner, hidden)}.items():
        here, there = (packed(one) for one in sides.numbers(outputs, inputs))
        yield f"{matrix}, unpacked", (unpack_weight(here), unpack_weight(there))
        for title, pair in rows_for(matrix, inputs, sides):
            # A row's bits are its own, so that the CPU's rows serve all numbers of rows.
            expected = portable_product(pair[1], there, dtype=torch.float32)
            counts = ROWS if title == "numbers" else ROWS_WITH_DIGITS
            for rows in counts:
                x = with_digits(title, pair[0][:rows], here)
                found = portable_product(x, here, dtype=torch.float32)
                yield f"{matrix}, {title}, {rows}", (found, expected[:rows])


def rows_for(matrix: str, inputs: int, sides: Sides) -> Iterator[tuple[str, Pair]]:
    """Yield rows of numbers, and those of which norms and activations make digits."""
    most = max(ROWS_WITH_DIGITS)
    yield "numbers", sides.numbers(max(ROWS), inputs, salt=1)
    if matrix in ("qkv", "gate_up"):
        before = sides.numbers(most, inputs, salt=2)
        yield "norm", (before[0], portable_rms_norm(before[1]))
    if matrix == "down":
        before = sides.numbers(most, 2 * inputs, salt=3)
        yield "gated", (before[0], portable_gated(before[1], Function.SILU))


def with_digits(title: str, x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    """Return the rows of a product, with their digits if a kernel makes these along with them."""
    if title == "norm":
        return portable_rms_norm(x, consumer=weight)
    return portable_gated(x, Function.SILU, weight) if title == "gated" else x


def attention(name: str, sides: Sides) -> Found:
    """Requests that decode, a prompt, and the end of a longer one, in one cache each."""
    shape = SHAPES[name]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    hidden = shape["hidden_size"]
    size = hidden // heads
    for title, requests in REQUESTS.items():
        lengths, queries = zip(*requests, strict=True)
        keys, values = (sides.numbers(sum(lengths), kv_heads, size, salt=salt) for salt in (11, 12))
        (cache, pages), (cache_there, pages_there) = (
            paged_cache(keys[side], values[side], lengths) for side in (0, 1)
        )
        query = sides.numbers(sum(queries), heads, size, salt=4)
        starts = [sum(queries[:i]) for i in range(len(queries) + 1)]
        places = [sides.of(torch.tensor(one, dtype=torch.int32)) for one in (starts, lengths)]
        for window, soft_cap in ((0, 0.0), (700, 30.0)):
            attend = partial(portable_attention, scale=size**-0.5, window=window, soft_cap=soft_cap)
            yield (
                f"{title}, window {window}",
                both(attend, query, (cache, cache_there), (pages, pages_there), *places),
            )
        weights: Any = [packed(one) for one in sides.numbers(hidden, hidden, salt=13)]
        product = partial(_product_of_attention, scale=size**-0.5)
        caches = ((cache, cache_there), (pages, pages_there))
        yield f"{title}, product", both(product, query, *caches, *places, weights)


def _product_of_attention(*arguments: Any, scale: float) -> torch.Tensor:
    """Multiply results whose digits attention makes."""
    *others, weight = arguments
    attended = portable_attention(*others, scale=scale, consumer=weight)
    return portable_product(attended.flatten(1), weight, dtype=torch.float32)


def rows(name: str, sides: Sides) -> Found:
    """Norms with a residual, gated activations, and rotary embeddings."""
    hidden, inner = SHAPES[name]["hidden_size"], SHAPES[name]["intermediate_size"]
    size = hidden // SHAPES[name]["num_attention_heads"]
    x, residual = sides.numbers(3000, hidden, salt=5), sides.numbers(3000, hidden, salt=6)
    yield "norm", both(_normed, x, sides.numbers(hidden, salt=7), residual)
    yield "residual", residual
    gated = partial(portable_gated, function=Function.SILU)
    yield "gated", both(gated, sides.numbers(1537, 2 * inner, salt=8))
    frequencies = sides.of(rotary_frequencies(size, 500000.0))
    table = both(partial(rotary_table, positions=8192), frequencies)
    yield "rotary table", table
    positions = sides.of(torch.arange(3000) * 2)
    yield "rotation", both(_rotated, sides.numbers(3000, 8, size, salt=9), positions, table)


def _normed(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return portable_rms_norm(x, weight, residual=residual)


def _rotated(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    portable_rotate(x, positions, table)
    return x


def vocabulary(name: str, sides: Sides) -> Found:
    """What is done to logits."""
    logits = sides.numbers(32, SHAPES[name]["vocab_size"], salt=10, dtype=torch.float32)
    yield "log_softmax", both(portable_log_softmax, logits)
    yield "argmax", both(portable_argmax, logits)
    for i, part in enumerate(("values", "tokens")):
        yield f"top_k, {part}", both(lambda x, i=i: portable_top_k(x, 1000)[i], logits)
    count = torch.arange(32)
    top_k, top_p, min_p = (count % 4 * 50).int(), 1 - count / 64, count % 3 * 0.01
    settings = map(sides.of, (0.5 + count / 32, top_k, top_p, min_p))
    left = both(portable_filter, logits, *settings)
    yield "filter", left
    yield "draw", both(portable_draw, left, sides.of(count * 2**33), sides.of(count + 2**31))


PARTS: dict[str, Callable[[str, Sides], Found]] = {
    "products": products,
    "attention": attention,
    "rows": rows,
    "vocabulary": vocabulary,
}


def compare(name: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """Compare all parts, and yield what was found until then, again and again.

    Args:
        name: of the model, see `models.SHAPES`.
        device: beside the CPU.
    """
    comparison, sides = Comparison(), Sides(device)
    for part, results in PARTS.items():
        try:
            for number, (title, (here, there)) in enumerate(results(name, sides)):
                comparison.add(f"{part}: {title}", here, there)
                if number % OFTEN == 0:
                    yield comparison.values()
        except RuntimeError as error:  # the other parts may have their bits
            comparison.fail(part, error)
        yield comparison.values()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for values in compare(options.model, torch.device(options.device)):
        print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
