"""Declares the compiled operators to Python, each beside the function that calls it.

What tracing has to know of an operator is its *fake*: a function with its arguments that makes
tensors of the right shapes, and computes nothing. The name of the fake, without the ``_`` before
it, is that of the operator in ``csrc/bindings/schemas.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from vllm.fork_kernels import library

__all__ = ["is_specified", "operator", "specified", "specified_untraced"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_specified: set[str] = set()

library.load()


def operator(fake: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the operator that has a fake, and register that."""
    name = fake.__name__.removeprefix("_")
    torch.library.register_fake(f"vllm_fork::{name}")(fake)
    return getattr(torch.ops.vllm_fork, name).default


def specified(fake: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same for an operator whose bits are specified, in ``docs/numerics``."""
    _specified.add(f"vllm_fork::{fake.__name__.removeprefix('_')}")
    return operator(fake)


def specified_untraced(name: str) -> Callable[..., Any]:
    """Return an operator whose bits are specified, and which nothing that is traced calls.

    Args:
        name: of the operator, which has no fake.
    """
    _specified.add(f"vllm_fork::{name}")
    return getattr(torch.ops.vllm_fork, name).default


def is_specified(name: str) -> bool:
    """Whether an operator is one of the fork's whose bits are specified.

    Args:
        name: with its namespace, such as ``vllm_fork::portable_map``.
    """
    return name in _specified
