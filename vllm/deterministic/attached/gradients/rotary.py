"""Rotary embeddings."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..rotary import PortableRotaryEmbedding, Rotation

__all__ = ["DifferentiableRotaryEmbedding"]


class _DifferentiableRotation(Rotation):
    @cached_property
    def back(self) -> Rotation:
        """The rotation by the negative angles, which is the transposed one."""
        cosines, sines = self.table.chunk(2, dim=-1)
        return Rotation(self.positions, torch.cat((cosines, -sines), dim=-1))

    def of(self, x: torch.Tensor, heads_dim: int) -> torch.Tensor:
        """Return x rotated, as `Rotation.of` does."""
        return _Rotate.apply(x, self, heads_dim)


class DifferentiableRotaryEmbedding(PortableRotaryEmbedding):
    """Makes rotations through which gradients go back."""

    rotation = _DifferentiableRotation


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, rotation: _DifferentiableRotation, heads_dim: int
    ) -> torch.Tensor:
        ctx.rotation, ctx.heads_dim = rotation, heads_dim
        return Rotation(rotation.positions, rotation.table).of(x, heads_dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.rotation.back.of(gradient, ctx.heads_dim), None, None
