"""A sentence for every compiled operator that this installation does not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch._ops import _OpNamespace

from vllm.fork.source_kernels.schemas import ASKED, COMPUTED, REFUSED

NAMESPACES = (
    "_C",
    "_C_cache_ops",
    "_C_custom_ar",
    "_C_cuda_utils",
    "_moe_C",
    "_vllm_fa2_C",
    "_vllm_fa3_C",
)
"""Of ``torch.ops``: those of upstream's extensions."""


class SourceNamespace(_OpNamespace):
    """Stands in for a namespace of ``torch.ops``; vLLM can still ask what it has by ``hasattr``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(refusal(f"torch.ops.{self.name}.{name}")) from None


def refusal(operator: str) -> str:
    """Return the sentence about an operator that is not there."""
    return (
        f"{operator} is one of vLLM's compiled kernels, which this installation leaves out "
        "(VLLM_KERNELS=source): use a model and options that do without it, or install with "
        "VLLM_KERNELS=all."
    )


def define_operators() -> tuple[torch.library.Library, ...]:
    """Define what is computed and what is refused in ``torch.ops._C``, and all other sentences.

    Returns:
        What holds the definitions: they go when it does.
    """
    library = torch.library.Library("_C", "FRAGMENT")
    refused = {
        name: (schema, partial(_refuse, f"torch.ops._C.{name}")) for name, schema in REFUSED.items()
    }
    operators: dict[str, tuple[str, Callable[..., Any]]] = {**COMPUTED, **refused}
    for name, (schema, function) in operators.items():
        library.define(name + schema)
        library.impl(name, function, "CompositeExplicitAutograd")
    utils = torch.library.Library("_C_cuda_utils", "FRAGMENT")
    for name, (schema, function) in ASKED.items():
        utils.define(name + schema)
        utils.impl(name, function, "CompositeExplicitAutograd")
    for name in NAMESPACES:
        setattr(torch.ops, name, SourceNamespace(name))
    return library, utils


def _refuse(operator: str, *_: object) -> NoReturn:
    raise NotImplementedError(refusal(operator))
