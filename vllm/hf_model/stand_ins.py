"""What stands in for those layers of a Transformers model that do not treat rows alone.

Each computes the requests of a `Group` with the bits that each has alone, and calls the layer
itself where there is one request. All other layers are given the whole group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from vllm.hf_layers.layers.activations import parts_of_runs
from vllm.hf_layers.layers.single_row_experts import RowExperts
from vllm.hf_layers.models import facts_of
from vllm.hf_layers.products.single_row_products import RowPlan
from vllm.hf_model.group import Group
from vllm.hf_model.row_linear import RowLinear

_ACTIVATIONS = {one[0] if isinstance(one, tuple) else one for one in ACT2CLS.values()}

Forward = Callable[..., Any]


def stand_in(model: PreTrainedModel, group: Group) -> None:
    """Stand in for the layers that do not treat rows alone; again, for those that are new.

    Args:
        model: of Transformers.
        group: says what they compute.
    """
    for module in model.modules():
        if not _has_stand_in(module) and (forward := _forward_for(module, group)) is not None:
            vars(module)["forward"] = forward


def standing_in(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that keep prompts apart, because something stands in for them."""
    for module in model.modules():
        if _has_stand_in(module):
            yield module


def _has_stand_in(module: nn.Module) -> bool:
    return "forward" in vars(module)


def _forward_for(module: Any, group: Group) -> Forward | None:
    """Return what stands in for the forward of a layer; None if it stays."""
    forward: Forward = module.forward
    if type(module) in (nn.Linear, Conv1D):
        plan = RowPlan.of_weight(module.weight, module.bias is not None, type(module))
        return RowLinear(module, plan, group)
    if type(module) in _ACTIVATIONS:
        return _rows_apart(_vectors_together(forward, group), group)
    if _is_plain_mixture(module):
        vars(module.gate).setdefault("forward", _rows_apart(module.gate.forward, group))
        vars(module.experts).setdefault("forward", _experts_together(module.experts, group))
        return _prompts_apart(forward, group)
    if isinstance(module, nn.Linear) or hasattr(module, "experts"):
        return _rows_apart(_prompts_apart(forward, group), group)
    if any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False)):
        return _prompts_apart(forward, group)  # of rotary embeddings
    return None


def _is_plain_mixture(module: nn.Module) -> bool:
    config = getattr(getattr(module, "experts", None), "config", None)
    return config is not None and facts_of(config).mixture == "plain"


def _rows_apart(forward: Forward, group: Group) -> Forward:
    """Return `forward`, called for each row of a group alone.

    Experts multiply the rows that are sent to them. Activations round differently where PyTorch's
    loop over a tensor ends, or is split between threads, and no whole vector is left.
    """

    def compute(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not group.has_rows:
            return forward(x, *args, **kwargs)
        return _joined([forward(row, *args, **kwargs) for row in x.split(1)], 0)

    return compute


def _prompts_apart(forward: Forward, group: Group) -> Forward:
    """Return `forward`, called for each prompt of a group alone."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        if not (prompts := group.prompts):
            return forward(*args, **kwargs)
        num_tokens = prompts[-1][2]

        def own(given: Any, begin: int, end: int) -> Any:
            is_of_tokens = isinstance(given, torch.Tensor) and given.shape[:2] == (1, num_tokens)
            return given[:, begin:end] if is_of_tokens else given

        with group.alone():
            answers = [
                forward(
                    *(own(one, begin, end) for one in args),
                    **{name: own(one, begin, end) for name, one in kwargs.items()},
                )
                for _, begin, end in prompts
            ]
        return _joined(answers, 1)

    return compute


def _joined(answers: list[Any], dim: int) -> Any:
    """Return what a layer answered for several requests, as for one that has all their tokens."""
    if not isinstance(answers[0], tuple):
        return torch.cat(answers, dim)
    # What is not of the dimensions of a model's rows is of tokens alone, as a router's choices are.
    return tuple(
        torch.cat(one, dim if one[0].dim() > 2 else 0) for one in zip(*answers, strict=True)
    )


def _vectors_together(activation: Forward, group: Group) -> Forward:
    """Return an activation of [1, num_tokens, size], which computes prompts together as far as that
    leaves none of them a remainder: see `vllm.hf_layers.layers.activations`.
    """

    def compute(x: torch.Tensor) -> torch.Tensor:
        if not (prompts := group.prompts):
            return activation(x)
        parts = parts_of_runs(prompts, x.shape[-1])
        if len(parts) == 1:
            return activation(x)
        return torch.cat([activation(x[:, begin:end]) for begin, end in parts], dim=1)

    return compute


def _experts_together(experts: nn.Module, group: Group) -> Forward:
    """Return the forward of experts, in which rows of a group share products."""
    forward, together = experts.forward, RowExperts(experts)

    def compute(*rows: torch.Tensor) -> torch.Tensor:
        if not group.has_rows:
            return forward(*rows)
        with group.alone():  # the activation takes a token's experts together
            return together(*rows)

    return compute
