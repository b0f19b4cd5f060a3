"""Activations as Hugging Face computes them: PyTorch's functions, in the shapes of one request.

PyTorch's vector loops round an element by where it lies: the remainder of a row, and of what each
thread has of a large tensor, goes through other code. So the halves of a gated activation, which
Hugging Face has in tensors of their own, are made contiguous first. What has no remainder alone is
computed together with others, in numbers of rows that have none either; another prompt by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import groupby

import torch
from torch.nn import functional

from vllm.fork_kernels import has_rounded_layers, silu_and_mul_rounded
from vllm.hf_layers.step_rows import Run, step_runs
from vllm.model_executor.layers.activation import GeluAndMul, MulAndSilu, SiluAndMul

_GRAIN = 32768
"""Elements from which PyTorch shares work between threads (``at::internal::GRAIN_SIZE``)."""

_VECTOR = 64
"""A multiple of the elements that vector loops take at once, for all types and CPUs."""


def by_request(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Return an elementwise function of the rows of a step, in the shapes that `generate()` has.

    Args:
        function: of as many tensors of one shape.
        inputs: [..., d], the tokens of a step, or rows that are no step's.
    """
    rows = [x.reshape(-1, x.shape[-1]) for x in inputs]
    found = [
        function(*(x[begin:end].contiguous() for x in rows)) for begin, end in parts(*rows[0].shape)
    ]
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole.view(*inputs[0].shape[:-1], -1)


def parts(num_rows: int, size: int) -> tuple[tuple[int, int], ...]:
    """Return first row and end of what is computed at once, of rows of a step."""
    return parts_of_runs(step_runs(num_rows), size)


def parts_of_runs(runs: tuple[Run, ...], size: int) -> tuple[tuple[int, int], ...]:
    """As `parts`, of rows with `size` elements."""
    return _parts_of(runs, size, torch.get_num_threads())


def rows_activated(runs: tuple[Run, ...], size: int) -> list[int]:
    """Return `parts_of_runs` as `decoder_rows` takes them."""
    found = parts_of_runs(runs, size)
    return [row for part in found for row in part] if len(found) > 1 else []


@functools.lru_cache(maxsize=64)
def _parts_of(runs: tuple[Run, ...], size: int, threads: int) -> tuple[tuple[int, int], ...]:
    return tuple(_parts(runs, size, threads))


def _parts(runs: tuple[Run, ...], size: int, threads: int) -> Iterator[tuple[int, int]]:
    def has_no_remainder(run: Run) -> bool:
        is_single, begin, end = run
        return is_all_vectors(1 if is_single else end - begin, size, threads)

    for may_be_together, group in groupby(runs, has_no_remainder):
        members = list(group)
        if may_be_together:
            yield from _cuts(members[0][1], members[-1][2], size, threads)
            continue
        for is_single, begin, end in members:
            step = 1 if is_single else end - begin
            yield from ((first, first + step) for first in range(begin, end, step))


def _cuts(begin: int, end: int, size: int, threads: int) -> Iterator[tuple[int, int]]:
    """Cut rows, each of which may be computed with any others, so that there is no remainder."""
    while begin < end:
        sizes = range(end - begin, 0, -1)
        step = next(n for n in sizes if is_all_vectors(n, size, threads))
        yield begin, begin + step
        begin += step


def is_all_vectors(num_rows: int, size: int, threads: int) -> bool:
    """Whether vector loops compute all of so many rows, on each of the threads.

    Source: ``at::parallel_for``, which gives each thread the same number of elements.
    """
    if size % _VECTOR != 0:
        return False
    elements = num_rows * size
    if elements <= _GRAIN:
        return True
    taken = min(threads, -(-elements // _GRAIN))
    return -(-elements // taken) % _VECTOR == 0


def forward_silu_and_mul(layer: SiluAndMul, x: torch.Tensor) -> torch.Tensor:
    """``act_fn(gate) * up`` of ``LlamaMLP``; x: [..., 2 * d], returns [..., d]."""
    if has_rounded_layers(x) and x.is_contiguous() and len(parts(len(x), x.shape[1] // 2)) == 1:
        return silu_and_mul_rounded(x)
    return by_request(lambda gate, up: functional.silu(gate) * up, *x.chunk(2, dim=-1))


def forward_mul_and_silu(layer: MulAndSilu, x: torch.Tensor) -> torch.Tensor:
    """``up * act_fn(gate)``, the halves the other way round; x: [..., 2 * d], returns [..., d]."""
    return by_request(lambda up, gate: up * functional.silu(gate), *x.chunk(2, dim=-1))


def forward_gelu_and_mul(layer: GeluAndMul, x: torch.Tensor) -> torch.Tensor:
    """``act_fn(gate) * up`` of ``GemmaMLP``; x: [..., 2 * d], returns [..., d]."""
    return by_request(
        lambda gate, up: functional.gelu(gate, approximate=layer.approximate) * up,
        *x.chunk(2, dim=-1),
    )
