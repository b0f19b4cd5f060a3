"""The functions of `vllm.fork_kernels.portable` with operators of another library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from vllm.fork_kernels.portable.prepared_digits import Maker

_MODULES = "vllm.fork_kernels.portable."


@contextmanager
def operators_of(namespace: str) -> Iterator[None]:
    """Let them call operators of a namespace of ``torch.ops``, and everybody else, too.

    Args:
        namespace: has the schemas of ``torch.ops.vllm_fork``.
    """
    theirs = getattr(torch.ops, namespace)

    def other(value: Any) -> Any:
        if isinstance(value, Maker):
            return Maker(value.name, other(value.plain), other(value.with_digits))
        if isinstance(value, torch._ops.OpOverload) and value.namespace == "vllm_fork":
            return getattr(theirs, value._opname).default
        return value

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.ops, "vllm_fork", theirs))
        for module in [one for name, one in sys.modules.items() if name.startswith(_MODULES)]:
            for name, value in [*vars(module).items()]:
                if (found := other(value)) is not value:
                    stack.enter_context(mock.patch.object(module, name, found))
        yield
