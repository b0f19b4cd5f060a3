"""A few answers that are known, computed when an engine starts: this machine's bits or none.

How a GPU shares its work out depends on how much there is. So it has more to compute than a CPU:
what takes it through each way of doing that (`tests/kernels/product/test_self_check_paths.py` says
which).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
    portable_rotate_append,
)
from vllm.fork_kernels.portable.functions import Function, portable_gated, portable_map
from vllm.fork_kernels.portable.logits import portable_argmax, portable_log_softmax, portable_top_k
from vllm.fork_kernels.portable.norm import portable_layer_norm, portable_rms_norm
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)
from vllm.fork_kernels.portable.rotary import portable_rotate, rotary_frequencies, rotary_table
from vllm.fork_kernels.portable.sampling import portable_draw, portable_filter
from vllm.logger import init_logger

logger = init_logger(__name__)

EXPECTED = {
    "products": "571cf722e0d4041f",
    "activations": "ce1a48f50de45823",
    "norms": "3ab13e1775a2f995",
    "products of what was just computed": "932b24b50f7053d3",
    "rotary embeddings": "31a89983918bf567",
    "attention": "acfea09f8fcad28d",
    "sampling": "88a5d8fa16bcd559",
    "products of many rows": "880bbbbcf5f9c362",
    "products of many channels": "0867a79327ab8e9a",
    "products of many rows that were just computed": "b1d39c20661b63ae",
    "attention to many tokens": "be0b883ae6cff78a",
    "attention in prompts": "f2d81064594698e2",
    "sampling from many tokens": "5989870fa0762aa1",
    "attention to what was just rotated": "a02dc98a2b5c06df",
}
"""SHA-256 of the bits of each group of operations, its first 16 digits."""

ON_CPUS = tuple(EXPECTED)[:7]
"""The groups that an engine on a CPU computes; on a GPU it computes all."""

OTHER_BITS_VARIABLE = "VLLM_FORK_OTHER_BITS"
"""For measurements of speed on a machine whose bits are wrong: with 1 it is only warned."""


def check_machine(device: torch.device | str = "cpu") -> None:
    """Compare a device's bits with the specification's.

    It takes some milliseconds on a CPU, and less than two seconds on a GPU, most of them for what a
    process does once. ``VLLM_FORK_OTHER_BITS=1`` makes a warning of the first error below. It is
    there to measure how fast a machine is whose bits are still to be mended: what is answered under
    it is not what the specification says, and another machine may answer otherwise.

    Args:
        device: the CPU, or a GPU.

    Raises:
        RuntimeError: the bits differ, and the sentence names the operations; or the variable is
            neither 0 nor 1.
    """
    is_allowed = _are_other_bits_allowed()
    device = torch.device(device)
    names = ON_CPUS if device.type == "cpu" else tuple(EXPECTED)
    found = dict(digests(device, names))
    differing = [name for name in names if found[name] != EXPECTED[name]]
    if not differing:
        return
    what = (
        f"deterministic=True: this machine computes {' and '.join(differing)} with other bits than "
        f"the specification's ({', '.join(found[name] for name in differing)} instead of "
        f"{', '.join(EXPECTED[name] for name in differing)})."
    )
    if not is_allowed:
        tool = "lscpu" if device.type == "cpu" else "nvidia-smi"
        raise RuntimeError(f"{what} Leave the flag out, and report it with the output of {tool}.")
    logger.warning(
        "%s %s=1 lets it answer, for measurements only: these are not the specification's answers.",
        what,
        OTHER_BITS_VARIABLE,
    )


def _are_other_bits_allowed() -> bool:
    value = os.environ.get(OTHER_BITS_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise RuntimeError(f"{OTHER_BITS_VARIABLE} must be 0 or 1, but is {value!r}.")
    return value == "1"


def digests(
    device: torch.device | str = "cpu", names: Iterable[str] = tuple(EXPECTED)
) -> Iterator[tuple[str, str]]:
    """Yield the names of groups, and what `EXPECTED` should hold of them, computed on a device.

    Args:
        device: the CPU, or a GPU.
        names: of the groups, keys of `EXPECTED`.
    """
    for name, tensors in answers(device, names):
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
        yield name, digest.hexdigest()[:16]


def answers(
    device: torch.device | str = "cpu", names: Iterable[str] = tuple(EXPECTED)
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield the names of groups of operations, and what a device computes with them.

    Args:
        device: the CPU, or a GPU; the tensors are on it.
        names: of the groups, keys of `EXPECTED`.
    """
    for name in names:
        yield name, _GROUPS[name](Numbers(device))


class Numbers:
    """Arguments on a device."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device

    def __call__(self, *shape: int, salt: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return numbers in -4..4 that no generator of random numbers decides about.

        They are made of integers, and rounded to the dtype alone: on each device the same.
        """
        stop = salt + math.prod(shape)
        index = torch.arange(salt, stop, dtype=torch.int64, device=self._device)
        mixed = (index * 2654435761 + 12345) % (1 << 32)
        mixed = (mixed ^ (mixed >> 15)) * 2246822519 % (1 << 32)
        return ((mixed >> 8).float() * 2.0**-21 - 4).to(dtype).view(shape)

    def of(self, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return given values, of a dtype."""
        return torch.as_tensor(values, dtype=dtype).to(self._device)

    def weight(self, outputs: int, inputs: int, salt: int) -> PackedWeight:
        """Return a weight whose channels are equalised."""
        weight = self(outputs, inputs, salt=salt)
        return pack_weight(weight, equalising_exponents(channel_statistics(weight)))


# --- on every machine ----------------------------------------------------------------------------
def _products(numbers: Numbers) -> list[torch.Tensor]:
    packed = numbers.weight(48, 584, salt=1)
    bias = numbers(48, salt=2)
    rows = numbers(19, 584, salt=3)
    return [
        portable_product(rows, packed, bias),
        portable_product(rows[:1], packed, dtype=torch.float32),
        portable_product(numbers(3, 584, salt=4, dtype=torch.float16), packed),
    ]


def _activations(numbers: Numbers) -> list[torch.Tensor]:
    x = numbers(2, 66, salt=5) * 4
    mapped = [portable_map(x, function) for function in Function]
    return [*mapped, portable_gated(x, Function.SILU), portable_gated(x, Function.GELU_TANH)]


def _norms(numbers: Numbers) -> list[torch.Tensor]:
    x, residual, weight = (numbers(n, 300, salt=n) for n in (5, 5, 1))
    normed = portable_rms_norm(x, weight[0], 1e-6, residual=residual, weight_offset=1.0)
    return [normed, residual, portable_layer_norm(x, weight[0], weight[0], 1e-5)]


def _fused_products(numbers: Numbers) -> list[torch.Tensor]:
    return _products_of_what_is_computed(numbers, 48, 584, 11, salt=13)


def _products_of_what_is_computed(
    numbers: Numbers, outputs: int, inputs: int, rows: int, salt: int
) -> list[torch.Tensor]:
    """On a GPU norms and activations make the digits of these products' rows."""
    weight = numbers(outputs, inputs, salt=salt)
    packed = pack_weight(weight, equalising_exponents(channel_statistics(weight)))
    x, gates = numbers(rows, inputs, salt=salt + 1), numbers(rows, 2 * inputs, salt=salt + 2)
    computed = [
        portable_rms_norm(x, weight[0], consumer=packed),
        portable_map(x, Function.GELU_TANH, packed),
        portable_gated(gates, Function.SILU, packed),
    ]
    return [portable_product(some, packed, dtype=torch.float32) for some in computed]


def _rotations(numbers: Numbers) -> list[torch.Tensor]:
    table = rotary_table(numbers.of(rotary_frequencies(32, 500000.0)), 100)
    x = numbers(4, 3, 48, salt=6)
    portable_rotate(x, numbers.of([0, 1, 50, 99]), table)
    return [table, x]


_BLOCK_SIZE = 16


def _cached(
    numbers: Numbers, lengths: list[int], heads: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cache with the keys and values of sequences, and their pages."""
    blocks = [-(-length // _BLOCK_SIZE) for length in lengths]
    shape = attention_cache_shape(sum(blocks), heads, size, _BLOCK_SIZE)
    cache = numbers.of(torch.zeros(shape, dtype=torch.uint8))
    pages = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    tokens = []
    for i, length in enumerate(lengths):
        first = sum(blocks[:i])
        pages[i, : blocks[i]] = torch.arange(first, first + blocks[i])
        tokens.append(torch.arange(length) + first * _BLOCK_SIZE)
    keys, values = (numbers(sum(lengths), heads, size, salt=salt) for salt in (10, 11))
    portable_append(keys, values, cache, numbers.of(torch.cat(tokens)))
    return cache, numbers.of(pages)


def _attention(numbers: Numbers) -> list[torch.Tensor]:
    lengths = [150, 33]
    cache, pages = _cached(numbers, lengths, 2, 32)
    starts = numbers.of([0, 20, 21], torch.int32)
    query = numbers(21, 4, 32, salt=12)
    stops = numbers.of(lengths, torch.int32)
    return [
        portable_attention(query, cache, pages, starts, stops, scale=0.25),
        portable_attention(query, cache, pages, starts, stops, scale=0.25, window=70, soft_cap=9.0),
    ]


def _samples(numbers: Numbers) -> list[torch.Tensor]:
    logits = numbers(4, 777, salt=8, dtype=torch.float32) * 3
    kept = _some_of(logits, numbers)
    drawn = portable_draw(kept, numbers.of([1, 2, 3, 4]), numbers.of([9, 8, 7, 6]))
    return [portable_log_softmax(logits), kept, drawn]


def _some_of(logits: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return four rows of logits as they are after temperature, top_k, top_p and min_p."""
    return portable_filter(
        logits,
        numbers.of([0.0, 0.7, 1.0, 1.3]),
        numbers.of([0, 40, 0, 9], torch.int32),
        numbers.of([1.0, 0.9, 0.8, 1.0]),
        numbers.of([0.0, 0.01, 0.0, 0.1]),
    )


# --- only on GPUs --------------------------------------------------------------------------------
_FEW_ROWS = (5, 13, 29, 61)
"""Each has another size of tiles; more rows have one more, or on a Hopper two."""

_ROWS_OF_OUTPUTS = {
    1401: (*_FEW_ROWS, 650, 870, 1050, 1537),
    2683: (*_FEW_ROWS, 582, 966),
    5243: _FEW_ROWS,
}
"""Rows that are multiplied with weights of so many outputs. On a GPU of any number of
multiprocessors some make more parts of the work than it computes at once, others less: so segments
are shared out between blocks of threads, or one has several, whose sums wait for each other. 1,537
rows are multiplied in two parts."""


def _products_of_many_rows(numbers: Numbers) -> list[torch.Tensor]:
    inputs = 256  # eight segments, each of one step of tensor cores
    results = []
    for outputs, counts in _ROWS_OF_OUTPUTS.items():
        packed = numbers.weight(outputs, inputs, salt=outputs)
        x = numbers(max(counts), inputs, salt=16)
        results += [portable_product(x[:count], packed) for count in counts]
    return results


def _products_of_many_channels(numbers: Numbers) -> list[torch.Tensor]:
    """Segments of several blocks, of which the last is not whole; and fewer segments than eight."""
    results = []
    for outputs, counts in {136: _FEW_ROWS, 701: (373,)}.items():
        packed = numbers.weight(outputs, 4360, salt=17)
        x, bias = numbers(max(counts), 4360, salt=18), numbers(outputs, salt=19)
        results += [portable_product(x[:count], packed, bias) for count in counts]
    for inputs in (1031, 1034, 1036):  # one, two and four
        packed = numbers.weight(40, inputs, salt=inputs)
        rows = numbers(70, inputs, salt=20)
        results += [portable_product(rows[:count], packed) for count in (5, 70)]
    return results


def _fused_products_of_many_rows(numbers: Numbers) -> list[torch.Tensor]:
    return _products_of_what_is_computed(numbers, 136, 4360, 150, salt=21)


def _attention_to_many_tokens(numbers: Numbers) -> list[torch.Tensor]:
    """More than 1,024 tokens, in several blocks of threads or, where these are many, in one."""
    results = []
    for size in (64, 128, 256):
        results += _attention_of_few(numbers, size)
        results.append(_attention_of_many(numbers, size))
    return results


def _attention_of_few(numbers: Numbers, size: int) -> list[torch.Tensor]:
    lengths = [1100, 1030, 40]
    cache, pages = _cached(numbers, lengths, 2, size)
    starts = numbers.of([0, 1, 2, 22], torch.int32)
    arguments = (numbers(22, 8, size, salt=24), cache, pages, starts, numbers.of(lengths).int())
    return [
        portable_attention(*arguments, scale=0.125),
        portable_attention(*arguments, scale=0.125, window=70, soft_cap=9.0),
    ]


def _attention_of_many(numbers: Numbers, size: int) -> torch.Tensor:
    """The last tokens of 64 sequences, which have the same pages, and 16 heads."""
    heads, sequences = 16, 64
    cache, pages = _cached(numbers, [1024 + sequences], heads, size)
    query = numbers(sequences, heads, size, salt=25)
    starts = numbers.of(list(range(sequences + 1)), torch.int32)
    lengths = numbers.of([1025 + i for i in range(sequences)], torch.int32)
    pages = pages.expand(sequences, -1).contiguous()
    return portable_attention(query, cache, pages, starts, lengths, scale=0.125, window=40)


def _attention_in_prompts(numbers: Numbers) -> list[torch.Tensor]:
    """So many queries that Hopper's warpgroups attend for them; one text has two superblocks."""
    queries, sequences, heads = 32, 22, 2
    lengths = [1100, *(queries + i for i in range(sequences - 1))]
    starts = numbers.of([queries * i for i in range(sequences + 1)], torch.int32)
    stops = numbers.of(lengths, torch.int32)
    results = []
    for size, rule in ((128, {"window": 1050}), (64, {"soft_cap": 9.0})):
        cache, pages = _cached(numbers, lengths, heads, size)
        query = numbers(queries * sequences, 2 * heads, size, salt=27)
        arguments = (query, cache, pages, starts, stops)
        results.append(portable_attention(*arguments, scale=0.125, **rule))
    return results


def _samples_from_many_tokens(numbers: Numbers) -> list[torch.Tensor]:
    """Several blocks of threads share a row, if there are few."""
    logits = numbers(4, 50001, salt=26, dtype=torch.float32) * 3
    kept = _some_of(logits, numbers)
    few = logits[:2]
    drawn = portable_draw(few, numbers.of([1, 2]), numbers.of([9, 8]))
    best = portable_top_k(few, 20)
    return [portable_log_softmax(few), portable_argmax(few), *best, kept, drawn]


def _attention_to_what_was_rotated(numbers: Numbers) -> list[torch.Tensor]:
    """On a GPU the last keys are rotated where they are appended; attention makes the digits of its
    results where it merges parts of long sequences, or after it.
    """
    heads, kv_heads, size = 6, 2, 80  # whose rows begin in the middle of blocks of digits
    table = rotary_table(numbers.of(rotary_frequencies(64, 500000.0)), 1100)
    packed = numbers.weight(40, heads * size, salt=28)
    results = []
    for lengths in ([1100, 1030, 40], [60, 3]):
        count = len(lengths)
        cache, pages = _cached(numbers, lengths, kv_heads, size)
        query = numbers(count, heads, size, salt=29)
        keys, values = (numbers(count, kv_heads, size, salt=salt) for salt in (30, 31))
        last = numbers.of(lengths) - 1
        blocks = pages.long().gather(1, last[:, None] // _BLOCK_SIZE)[:, 0]
        slots = blocks * _BLOCK_SIZE + last % _BLOCK_SIZE
        portable_rotate_append(query, keys, values, last, table, cache, slots)
        starts = numbers.of(list(range(count + 1)), torch.int32)
        stops = numbers.of(lengths, torch.int32)
        attended = portable_attention(
            query, cache, pages, starts, stops, scale=0.125, consumer=packed
        )
        product = portable_product(attended.flatten(1), packed, dtype=torch.float32)
        results += [query, keys, attended, product]
    return results


_GROUPS: dict[str, Callable[[Numbers], list[torch.Tensor]]] = {
    "products": _products,
    "activations": _activations,
    "norms": _norms,
    "products of what was just computed": _fused_products,
    "rotary embeddings": _rotations,
    "attention": _attention,
    "sampling": _samples,
    "products of many rows": _products_of_many_rows,
    "products of many channels": _products_of_many_channels,
    "products of many rows that were just computed": _fused_products_of_many_rows,
    "attention to many tokens": _attention_to_many_tokens,
    "attention in prompts": _attention_in_prompts,
    "sampling from many tokens": _samples_from_many_tokens,
    "attention to what was just rotated": _attention_to_what_was_rotated,
}
