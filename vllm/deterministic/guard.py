"""Refuses floating-point operations whose bits may differ between machines.

Everything PyTorch runs passes the guard. Allowed are operations that move numbers or round once,
as IEEE 754 says, and operators of the fork that are declared as `specified`. All else is refused,
so that an operation nobody thought of is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vllm.fork_kernels.operators import is_specified

__all__ = ["InexactOperationError", "only_exact_operations", "only_exact_operations_of"]

_MOVES = """
    _reshape_alias _to_copy _unsafe_view alias as_strided cat clone constant_pad_nd copy_ detach
    diagonal embedding empty empty_like empty_strided expand fill fill_ flip full full_like gather
    index index_copy index_copy_ index_put index_put_ index_select lift_fresh lift_fresh_copy
    masked_fill masked_fill_ masked_select new_empty new_empty_strided new_full new_ones new_zeros
    ones ones_like permute repeat roll scalar_tensor scatter select set_ slice split
    split_with_sizes squeeze stack t transpose unbind unfold unsqueeze view where zero_ zeros
    zeros_like _local_scalar_dense detach_
"""
"""Copies and views; `_to_copy` and `copy_` round to the nearest number of another format."""

_COMPARISONS = """
    abs eq equal ge gt isfinite isinf isnan le logical_and logical_not logical_or lt maximum minimum
    ne neg sign signbit
"""

_ROUNDED_ONCE = ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_")
"""Each result is the exact one, rounded (in 16 bits through float32, on every machine)."""

_EXACT = frozenset(f"aten::{name}" for name in f"{_MOVES} {_COMPARISONS}".split())
_ARITHMETIC = frozenset(f"aten::{name}" for name in _ROUNDED_ONCE)


class InexactOperationError(RuntimeError):
    """An operation was refused; the message names it, where it is and why."""


@contextmanager
def only_exact_operations(
    where: str | Callable[[], str], also: Collection[str] = ()
) -> Iterator[None]:
    """Refuse operations on floating-point tensors whose bits are not specified.

    Operations without a floating-point tensor, of integers and booleans, are all allowed.

    Args:
        where: what is being computed, for the message, or a function that returns it.
        also: names of operators that are portable here, such as ``vllm::all_gather``.

    Raises:
        InexactOperationError: such an operation was called.
    """
    with _Guard(where, lambda: also):
        yield


@contextmanager
def only_exact_operations_of(
    model: nn.Module,
    also: Collection[str] = (),
    also_in: Mapping[type[nn.Module], Collection[str]] = MappingProxyType({}),
) -> Iterator[None]:
    """The same while `model` computes; the message names the submodule.

    Args:
        model: calls the operations.
        also: names of operators that are portable here.
        also_in: the same for those called by submodules of a class themselves.

    Raises:
        InexactOperationError: such an operation was called.
    """
    names = {id(module): name for name, module in model.named_modules()}
    running = [model]

    def enter(module: nn.Module, arguments: Any) -> None:
        running.append(module)

    def leave(module: nn.Module, arguments: Any, result: Any) -> None:
        running.pop()

    def where() -> str:
        return names.get(id(running[-1])) or type(running[-1]).__name__

    def allowed() -> Collection[str]:
        own = (some for kind, some in also_in.items() if isinstance(running[-1], kind))
        return frozenset(also).union(*own)

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        with _Guard(where, allowed):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Guard(TorchDispatchMode):
    def __init__(self, where: str | Callable[[], str], also: Callable[[], Collection[str]]) -> None:
        super().__init__()
        self._where = where
        self._also = also

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:  # in inference mode, what is made of other operations comes here undivided
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = func(*args, **kwargs)
        if any(_is_floating(x) for x in tree_leaves((args, kwargs, result))):
            self._check(func, args, kwargs)
        return result

    def _check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = str(func._schema.name)
        is_portable = is_specified(name) or name in self._also()
        reason = None if is_portable else _objection(name, args, kwargs)
        if reason is not None:
            where = self._where if isinstance(self._where, str) else self._where()
            raise InexactOperationError(
                f"deterministic mode cannot compute {where}: it calls {name}, {reason}."
            )


def _is_floating(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _objection(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return why an operation is refused; None if it is allowed."""
    if name in _ARITHMETIC:
        return _objection_to_arithmetic(name, args, kwargs)
    return None if name in _EXACT else "whose bits are not specified"


def _objection_to_arithmetic(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    if kwargs.get("alpha", 1) != 1:
        return "with a factor, which some machines fuse"
    if kwargs.get("rounding_mode") is not None:
        return "with a rounding mode"
    x, y = args[:2]
    if isinstance(y, torch.Tensor) and y.dim() > 0:
        return None
    if name.startswith("aten::div"):
        if abs(math.frexp(float(y))[0]) == 0.5:  # a power of two: both are exact
            return None
        return "by a single number, whose reciprocal some machines multiply with"
    is_a_number = float(torch.tensor(float(y), dtype=x.dtype)) == float(y)
    if not x.is_floating_point() or is_a_number:
        return None
    is_plain = name.startswith("aten::mul") and not isinstance(y, torch.Tensor)
    if is_plain and _multiplies_in_float32(x.dtype, x.device.type):
        return None
    return f"with {float(y)}, which is no number of {x.dtype} and would be rounded"


@cache
def _multiplies_in_float32(dtype: torch.dtype, device: str) -> bool:
    """Return whether PyTorch multiplies with a number as specified: the number is the nearest one
    of float32, the product is in float32, and is rounded to the dtype. All of 16 bits are tried.
    """
    if dtype == torch.float32:
        return True
    every = torch.arange(1 << 16, dtype=torch.int32, device=device).to(torch.uint16).view(dtype)
    finite = every[every.isfinite()]
    for number in (0.1, -11.313708498984761):
        exact = torch.tensor([number], dtype=torch.float32, device=device)
        if not torch.equal(finite * number, (finite.float() * exact).to(dtype)):
            return False
    return True
