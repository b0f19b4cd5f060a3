"""Rotary embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vllm.fork_kernels.portable.rotary import portable_rotate

from .asked import is_asked

__all__ = ["Rotation"]


@dataclass(frozen=True)
class Rotation:
    """What takes the place of cosines and of sines: positions int64 [tokens], and their table."""

    positions: torch.Tensor
    table: torch.Tensor

    @cached_property
    def back(self) -> Rotation:
        """The rotation by the negative angles, which is the transposed one."""
        cosines, sines = self.table.chunk(2, dim=-1)
        return Rotation(self.positions, torch.cat((cosines, -sines), dim=-1))

    def of(self, x: torch.Tensor, heads_dim: int) -> torch.Tensor:
        """Return x, [batch, ..., size] with its heads at `heads_dim` (1 or 2), rotated."""
        if is_asked(x):
            return _Rotate.apply(x, self, heads_dim)
        by_token = x.transpose(1, 2) if heads_dim == 1 else x
        rotated = by_token.clone(memory_format=torch.contiguous_format)
        portable_rotate(rotated.flatten(0, 1), self.positions, self.table)
        return rotated.transpose(1, 2) if heads_dim == 1 else rotated


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rotation: Rotation, heads_dim: int) -> torch.Tensor:
        ctx.rotation, ctx.heads_dim = rotation, heads_dim
        return rotation.of(x, heads_dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.rotation.back.of(gradient, ctx.heads_dim), None, None
