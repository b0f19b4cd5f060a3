"""What stands in for those layers of a Transformers model that do not treat rows alone.

Each computes the requests of a `Group` with the bits that each has alone, and calls the layer
itself where there is one request. All other layers are given the whole group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from vllm.hf_layers.layers.activations import parts_of_runs
from vllm.hf_layers.layers.single_row_experts import RowExperts, is_grouped_experts
from vllm.hf_layers.models import facts_of
from vllm.hf_layers.products.single_row_products import RowPlan
from vllm.hf_model.group import Group
from vllm.hf_model.group_cache import GroupCache
from vllm.hf_model.row_linear import RowLinear

_ACTIVATIONS = {one[0] if isinstance(one, tuple) else one for one in ACT2CLS.values()}

Forward = Callable[..., Any]


def stand_in(model: PreTrainedModel, group: Group, with_states: Collection[nn.Module] = ()) -> None:
    """Stand in for the layers that do not treat rows alone; again, for those that are new.

    Args:
        model: of Transformers.
        group: says what they compute.
        with_states: the layers that keep states (`state_layers`).
    """
    for module in model.modules():
        if _has_stand_in(module):
            continue
        if module in with_states:
            vars(module)["forward"] = _requests_apart(module.forward, group)
        elif (forward := _forward_for(module, group)) is not None:
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
    if is_grouped_experts(module):
        return _experts_together(module, group)
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
        calls = [partial(forward, row, *args, **kwargs) for row in x.split(1)]
        return _joined(group.each_alone(calls), 0)

    return compute


def _requests_apart(forward: Forward, group: Group) -> Forward:
    """Return `forward` of a layer that keeps states, called for each request of a group alone, with
    the cache of each (`GroupCache.of_request`).
    """

    def compute(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        cache = next((one for one in given if isinstance(one, GroupCache)), None)
        if not group.has_rows or cache is None:
            return forward(*args, **kwargs)

        def own(i: int, one: Any) -> Any:
            if one is cache:
                return cache.of_request(i)
            is_of_rows = isinstance(one, torch.Tensor) and len(one) == cache.num_requests
            return one[i : i + 1] if is_of_rows else one

        calls = [
            partial(
                forward,
                *(own(i, one) for one in args),
                **{name: own(i, one) for name, one in kwargs.items()},
            )
            for i in range(cache.num_requests)
        ]
        return _joined(group.each_alone(calls), 0)

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
    forward, experts_of_rows = experts.forward, RowExperts(experts)

    def together(*rows: torch.Tensor) -> torch.Tensor:
        with group.alone():  # the activation takes a token's experts together
            return experts_of_rows(*rows)

    def compute(*rows: torch.Tensor) -> torch.Tensor:
        return group.share(together, *rows) if group.has_rows else forward(*rows)

    return compute
