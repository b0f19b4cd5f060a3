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

    def to(self, device: torch.device) -> Rotation:
        """Return itself: models move complex numbers to their queries, where this one is."""
        return self

    def of(self, x: torch.Tensor, heads_dim: int, *, is_interleaved: bool = False) -> torch.Tensor:
        """Return x rotated.

        Args:
            x: [batch, ..., size].
            heads_dim: where its heads are, 1 or 2.
            is_interleaved: as of `portable_rotate`.
        """
        if is_asked(x):
            return _Rotate.apply(x, self, heads_dim, is_interleaved)
        by_token = x.transpose(1, 2) if heads_dim == 1 else x
        rotated = by_token.clone(memory_format=torch.contiguous_format)
        rows = rotated.flatten(0, 1)
        portable_rotate(rows, self.positions, self.table, is_interleaved=is_interleaved)
        return rotated.transpose(1, 2) if heads_dim == 1 else rotated


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, rotation: Rotation, heads_dim: int, is_interleaved: bool
    ) -> torch.Tensor:
        ctx.rotation, ctx.heads_dim, ctx.is_interleaved = rotation, heads_dim, is_interleaved
        return rotation.of(x, heads_dim, is_interleaved=is_interleaved)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        back = ctx.rotation.back
        rotated = back.of(gradient, ctx.heads_dim, is_interleaved=ctx.is_interleaved)
        return rotated, None, None, None
