"""Activations as Hugging Face computes them: PyTorch's functions, in the shapes of one request.

PyTorch's vector loops round an element by where it lies: the remainder of a row, and of what each
thread has of a large tensor, goes through other code. So the halves of a gated activation, which
Hugging Face has in tensors of their own, are made contiguous first, a prompt is computed alone, and
single tokens in groups that are no more than one thread's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from vllm.hf_numerics.requests import step_runs
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
    parts = [
        function(*(x[begin:end].contiguous() for x in rows))
        for begin, end in _parts(*rows[0].shape)
    ]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.view(*inputs[0].shape[:-1], -1)


def _parts(num_rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield first row and end of what is computed at once."""
    together = max(1, (_GRAIN - 1) // size) if size % _VECTOR == 0 else 1
    for is_single, begin, end in step_runs(num_rows):
        step = together if is_single else end - begin
        for first in range(begin, end, step):
            yield first, min(first + step, end)


def forward_silu_and_mul(layer: SiluAndMul, x: torch.Tensor) -> torch.Tensor:
    """``act_fn(gate) * up`` of ``LlamaMLP``; x: [..., 2 * d], returns [..., d]."""
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
