"""The operations of deterministic mode at a real model's shapes, on any device.

The numbers are made of integers, so that each device has the same. Results are the products of all
matrices of a layer with 1 to 3,000 rows, from numbers and from digits that norms and activations
make; attention over 1,100 and 5,000 tokens, in decoding and in prompts; norms, rotary embeddings,
and the vocabulary's operations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.gpu.shapes import SHAPES, linear_shapes
from vllm.deterministic.self_check import Numbers
from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)
from vllm.fork_kernels.portable.functions import Function, portable_gated
from vllm.fork_kernels.portable.logits import portable_argmax, portable_log_softmax, portable_top_k
from vllm.fork_kernels.portable.norm import portable_rms_norm
from vllm.fork_kernels.portable.product import PackedWeight, portable_product, unpack_weight
from vllm.fork_kernels.portable.rotary import portable_rotate, rotary_frequencies, rotary_table
from vllm.fork_kernels.portable.sampling import portable_draw, portable_filter

ROWS = (1, 5, 8, 16, 17, 32, 64, 65, 96, 97, 200, 1537, 3000)
"""Around the sizes of tiles, and more than are multiplied at once."""

MOST_WITH_DIGITS = 1536
"""Rows that norms and activations make digits of."""

REQUESTS = {
    "decode": [(1100, 1), (5000, 1), (17, 1)],
    "prompt": [(1100, 1100)],
    "end of a prompt": [(5000, 512)],
    "all of these": [(1100, 1), (300, 300), (5000, 64), (64, 1)],
}
"""Tokens of each request, and how many of them, the last ones, attend."""

BLOCK_SIZE = 16

Results = Iterator[tuple[str, torch.Tensor]]


def products(name: str, matrix: str, numbers: Numbers) -> Results:
    """Those of a matrix: rows of numbers, and rows whose digits another kernel makes."""
    hidden, inner = SHAPES[name]["hidden_size"], SHAPES[name]["intermediate_size"]
    # One is split otherwise on GPUs of 132 multiprocessors.
    outputs, inputs = {**linear_shapes(name), "gate": (inner, hidden)}[matrix]
    weight = numbers.weight(outputs, inputs, salt=1)
    yield "unpacked", unpack_weight(weight)
    for title, make in makers(matrix, weight).items():
        width = 2 * inputs if title == "gated" else inputs
        x = numbers(max(ROWS), width, salt=2)
        for rows in ROWS:
            if title == "numbers" or rows <= MOST_WITH_DIGITS:
                product = portable_product(make(x[:rows]), weight, dtype=torch.float32)
                yield f"{title}, {rows}", product


def makers(matrix: str, weight: PackedWeight) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return what makes the rows of a product, by its name."""
    made: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"numbers": lambda x: x}
    if matrix in ("qkv", "gate_up"):
        made["norm"] = partial(portable_rms_norm, consumer=weight)
    if matrix == "down":
        made["gated"] = lambda x: portable_gated(x, Function.SILU, weight)
    return made


def attention(name: str, title: str, numbers: Numbers) -> Results:
    """One batch of `REQUESTS`; attention's results are multiplied, too."""
    shape = SHAPES[name]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    hidden = shape["hidden_size"]
    size = hidden // heads
    lengths, queries = (list(column) for column in zip(*REQUESTS[title], strict=True))
    keys, values = (numbers(sum(lengths), kv_heads, size, salt=salt) for salt in (3, 4))
    cache, pages = paged_cache(keys, values, lengths)
    starts = [sum(queries[:i]) for i in range(len(queries) + 1)]
    places = [numbers.of(one, torch.int32) for one in (starts, lengths)]
    arguments = (numbers(sum(queries), heads, size, salt=5), cache, pages, *places)
    for window, soft_cap in ((0, 0.0), (700, 30.0)):
        yield (
            f"window {window}",
            portable_attention(*arguments, scale=size**-0.5, window=window, soft_cap=soft_cap),
        )
    weight = numbers.weight(hidden, hidden, salt=6)
    attended = portable_attention(*arguments, scale=size**-0.5, consumer=weight)
    yield "product", portable_product(attended.flatten(1), weight, dtype=torch.float32)


def paged_cache(
    keys: torch.Tensor, values: torch.Tensor, lengths: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cache with the keys and values of requests, each in blocks of its own.

    Args:
        keys: bfloat16 [tokens of all requests, kv_heads, size].
        values: likewise.
        lengths: tokens of each request.

    Returns:
        The cache, see `attention_cache_shape`, and its pages, int32 [requests, most blocks].
    """
    blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    _, kv_heads, size = keys.shape
    shape = attention_cache_shape(sum(blocks), kv_heads, size, BLOCK_SIZE)
    cache = torch.zeros(shape, dtype=torch.uint8, device=keys.device)
    pages = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    slots = []
    for i, (length, count) in enumerate(zip(lengths, blocks, strict=True)):
        first = sum(blocks[:i])
        pages[i, :count] = torch.arange(first, first + count)
        slots.append(torch.arange(length) + first * BLOCK_SIZE)
    portable_append(keys, values, cache, torch.cat(slots).to(keys.device))
    return cache, pages.to(keys.device)


def rows(name: str, numbers: Numbers) -> Results:
    """Norms with a residual, gated activations, and rotary embeddings."""
    hidden, inner = SHAPES[name]["hidden_size"], SHAPES[name]["intermediate_size"]
    size = hidden // SHAPES[name]["num_attention_heads"]
    x, residual = (numbers(3000, hidden, salt=salt) for salt in (7, 8))
    yield "norm", portable_rms_norm(x, numbers(hidden, salt=9), residual=residual)
    yield "residual", residual
    yield "gated", portable_gated(numbers(1537, 2 * inner, salt=10), Function.SILU)
    table = rotary_table(numbers.of(rotary_frequencies(size, 500000.0)), positions=8192)
    yield "rotary table", table
    x = numbers(3000, 8, size, salt=11)
    portable_rotate(x, numbers.of(torch.arange(3000) * 2), table)
    yield "rotation", x


def vocabulary(name: str, numbers: Numbers) -> Results:
    """What is done to logits."""
    logits = numbers(32, SHAPES[name]["vocab_size"], salt=12, dtype=torch.float32) * 3
    yield "log_softmax", portable_log_softmax(logits)
    yield "argmax", portable_argmax(logits)
    values, tokens = portable_top_k(logits, 1000)
    yield "top_k, values", values
    yield "top_k, tokens", tokens
    count = torch.arange(32)
    settings = (0.5 + count / 32, (count % 4 * 50).int(), 1 - count / 64, count % 3 * 0.01)
    left = portable_filter(logits, *map(numbers.of, settings))
    yield "filter", left
    yield "draw", portable_draw(left, numbers.of(count * 2**33), numbers.of(count + 2**31))


def groups(name: str) -> dict[str, Callable[[Numbers], Results]]:
    """Return what computes each group of results of a model, see `SHAPES`."""
    return {
        **{f"products, {one}": partial(products, name, one) for one in linear_shapes(name)},
        "products, gate": partial(products, name, "gate"),
        **{f"attention, {one}": partial(attention, name, one) for one in REQUESTS},
        "rows": partial(rows, name),
        "vocabulary": partial(vocabulary, name),
    }  # fmt: skip


def digest(tensor: torch.Tensor) -> str:
    """Return that of a tensor's bits."""
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(raw.data).hexdigest()[:16]


def digests(name: str, device: str = "cpu") -> dict[str, dict[str, str]]:
    """Return those of all results of a model's shapes, by group."""
    numbers = Numbers(device)
    return {
        group: {title: digest(tensor) for title, tensor in compute(numbers)}
        for group, compute in groups(name).items()
    }
