"""A few answers that are known, computed when an engine starts: this machine's bits or none."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vllm.fork_ops.portable_attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)
from vllm.fork_ops.portable_functions import Function, portable_gated, portable_map
from vllm.fork_ops.portable_logits import portable_log_softmax
from vllm.fork_ops.portable_norm import portable_layer_norm, portable_rms_norm
from vllm.fork_ops.portable_product import (
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)
from vllm.fork_ops.portable_rotary import portable_rotate, rotary_frequencies, rotary_table
from vllm.fork_ops.portable_sampling import portable_draw, portable_filter

EXPECTED = {
    "products": "571cf722e0d4041f",
    "activations": "ce1a48f50de45823",
    "norms": "3ab13e1775a2f995",
    "products of what was just computed": "932b24b50f7053d3",
    "rotary embeddings": "31a89983918bf567",
    "attention": "acfea09f8fcad28d",
    "sampling": "88a5d8fa16bcd559",
}
"""SHA-256 of the bits of each group of operations, its first 16 digits."""


def check_machine(device: torch.device | str = "cpu") -> None:
    """Compare a device's bits with the specification's; it takes some milliseconds.

    Args:
        device: the CPU, or a GPU.

    Raises:
        RuntimeError: they differ; the sentence names the operation.
    """
    for name, digest in digests(device):
        if digest != EXPECTED[name]:
            tool = "lscpu" if torch.device(device).type == "cpu" else "nvidia-smi"
            raise RuntimeError(
                f"deterministic=True: this machine computes {name} with other bits than the "
                f"specification's ({digest} instead of {EXPECTED[name]}). Leave the flag out, and "
                f"report it with the output of {tool}."
            )


def digests(device: torch.device | str = "cpu") -> Iterator[tuple[str, str]]:
    """Yield the names of the groups and what `EXPECTED` should hold, computed on a device."""
    groups: dict[str, Callable[[_Numbers], list[torch.Tensor]]] = {
        "products": _products,
        "activations": _activations,
        "norms": _norms,
        "products of what was just computed": _fused_products,
        "rotary embeddings": _rotations,
        "attention": _attention,
        "sampling": _samples,
    }
    for name, compute in groups.items():
        bits = b"".join(_bytes(tensor) for tensor in compute(_Numbers(device)))
        yield name, hashlib.sha256(bits).hexdigest()[:16]


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


class _Numbers:
    """Arguments on a device."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device

    def __call__(self, *shape: int, salt: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return numbers in -4..4 that no generator of random numbers decides about."""
        index = torch.arange(salt, salt + math.prod(shape), dtype=torch.int64)
        mixed = (index * 2654435761 + 12345) % (1 << 32)
        mixed = (mixed ^ (mixed >> 15)) * 2246822519 % (1 << 32)
        return self.of(((mixed >> 8).double() * 2.0**-21 - 4).to(dtype).view(shape))

    def of(self, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return given values, of a dtype."""
        return torch.as_tensor(values, dtype=dtype).to(self._device)


def _products(numbers: _Numbers) -> list[torch.Tensor]:
    weight = numbers(48, 584, salt=1)
    exponents = equalising_exponents(channel_statistics(weight))
    packed = pack_weight(weight, exponents)
    bias = numbers(48, salt=2)
    rows = numbers(19, 584, salt=3)
    return [
        portable_product(rows, packed, bias),
        portable_product(rows[:1], packed, dtype=torch.float32),
        portable_product(numbers(3, 584, salt=4, dtype=torch.float16), packed),
    ]


def _activations(numbers: _Numbers) -> list[torch.Tensor]:
    x = numbers(2, 66, salt=5) * 4
    mapped = [portable_map(x, function) for function in Function]
    return [*mapped, portable_gated(x, Function.SILU), portable_gated(x, Function.GELU_TANH)]


def _norms(numbers: _Numbers) -> list[torch.Tensor]:
    x, residual, weight = (numbers(n, 300, salt=n) for n in (5, 5, 1))
    normed = portable_rms_norm(x, weight[0], 1e-6, residual=residual, weight_offset=1.0)
    return [normed, residual, portable_layer_norm(x, weight[0], weight[0], 1e-5)]


def _fused_products(numbers: _Numbers) -> list[torch.Tensor]:
    """On a GPU norms and activations make the digits of these products' rows."""
    weight = numbers(48, 584, salt=13)
    packed = pack_weight(weight, equalising_exponents(channel_statistics(weight)))
    x, gates = numbers(11, 584, salt=14), numbers(11, 2 * 584, salt=15)
    rows = [
        portable_rms_norm(x, weight[0], consumer=packed),
        portable_map(x, Function.GELU_TANH, packed),
        portable_gated(gates, Function.SILU, packed),
    ]
    return [portable_product(some, packed, dtype=torch.float32) for some in rows]


def _rotations(numbers: _Numbers) -> list[torch.Tensor]:
    table = rotary_table(numbers.of(rotary_frequencies(32, 500000.0)), 100)
    x = numbers(4, 3, 48, salt=6)
    portable_rotate(x, numbers.of([0, 1, 50, 99]), table)
    return [table, x]


def _attention(numbers: _Numbers) -> list[torch.Tensor]:
    block_size, lengths = 16, [150, 33]
    blocks = [-(-length // block_size) for length in lengths]
    shape = attention_cache_shape(sum(blocks), 2, 32, block_size)
    cache = numbers.of(torch.zeros(shape, dtype=torch.uint8))
    pages = torch.zeros(2, max(blocks), dtype=torch.int32)
    pages[0] = torch.arange(blocks[0])
    pages[1, : blocks[1]] = torch.arange(blocks[0], sum(blocks))
    tokens = [
        torch.arange(length) + int(pages[i, 0]) * block_size for i, length in enumerate(lengths)
    ]
    keys, values = (numbers(sum(lengths), 2, 32, salt=salt) for salt in (10, 11))
    portable_append(keys, values, cache, numbers.of(torch.cat(tokens)))
    pages = numbers.of(pages)
    starts = numbers.of([0, 20, 21], torch.int32)
    query = numbers(21, 4, 32, salt=12)
    stops = numbers.of(lengths, torch.int32)
    return [
        portable_attention(query, cache, pages, starts, stops, scale=0.25),
        portable_attention(query, cache, pages, starts, stops, scale=0.25, window=70, soft_cap=9.0),
    ]


def _samples(numbers: _Numbers) -> list[torch.Tensor]:
    logits = numbers(4, 777, salt=8, dtype=torch.float32) * 3
    kept = portable_filter(
        logits,
        numbers.of([0.0, 0.7, 1.0, 1.3]),
        numbers.of([0, 40, 0, 9], torch.int32),
        numbers.of([1.0, 0.9, 0.8, 1.0]),
        numbers.of([0.0, 0.01, 0.0, 0.1]),
    )
    drawn = portable_draw(kept, numbers.of([1, 2, 3, 4]), numbers.of([9, 8, 7, 6]))
    return [portable_log_softmax(logits), kept, drawn]
