"""Experts of many requests' single tokens, with the bits that each token has alone.

A token alone is one row for each of its experts. Rows that go to the same expert share a product
here, as far as `single_row_products` finds that this keeps their bits; all that lies between the
products is computed for each token in the shapes that it has alone.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import _grouped_linear

from vllm.hf_layers.products.single_row_products import RowPlan, RowsApart

_ARGUMENTS = (
    ("hidden_states", "top_k_index", "top_k_weights"),
    ("hidden_states", "router_indices", "routing_weights"),
)
"""Of experts."""


class ExpertLinear(nn.Linear):
    """The product of one expert, as Transformers computes it when it groups rows by expert."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the products of x [..., in_features], [..., out_features]."""
        return expert_product(x.flatten(0, -2), self.weight, None).view(*x.shape[:-1], -1)


def expert_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the products of x [n, in_features] with weight [out_features, in_features].

    Source: ``transformers.integrations.moe._grouped_linear``, with one group and no biases; where
    weights are transposed it multiplies with what lies in memory likewise.
    """
    assert bias is None
    offsets = torch.tensor([len(x)], dtype=torch.int32, device=x.device)
    return _grouped_linear(x, weight[None], offsets)


class RowExperts:
    """Computes the experts of tokens that are alone.

    Source: ``transformers.integrations.moe.grouped_mm_experts_forward``, of one token.

    Args:
        experts: Transformers' module (``MixtralExperts``, for one). Its tokens are computed one by
            one unless it multiplies rows grouped by expert, which it does by default.
    """

    def __init__(self, experts: Any) -> None:
        self._experts = experts
        self._can_share = can_share_products(experts)
        if self._can_share:
            self._apart = {name: self._rows_apart(name) for name in ("gate_up_proj", "down_proj")}

    def __call__(
        self, x: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of each token's experts, like `x`.

        Args:
            x: [num_tokens, hidden_size].
            top_k_index: int64 [num_tokens, top_k].
            top_k_weights: of the same shape.
        """
        if len(x) < 2 or not self._can_share:
            tokens = zip(x.split(1), top_k_index.split(1), top_k_weights.split(1), strict=True)
            return torch.cat([self._experts(*token) for token in tokens])
        top_k = top_k_index.shape[1]
        order = top_k_index.argsort(dim=-1)  # a token's rows lie in the order of their experts
        experts = top_k_index.gather(1, order).flatten()
        by_expert = experts.argsort()
        counts = experts.bincount(minlength=self._experts.num_experts).tolist()
        rows = x.repeat_interleave(top_k, dim=0)
        rows = self._multiplied("gate_up_proj", rows, experts, by_expert, counts)
        rows = torch.cat([self._experts._apply_gate(own) for own in rows.split(top_k)])
        rows = self._multiplied("down_proj", rows, experts, by_expert, counts)
        weighted = rows.view(*order.shape, -1) * top_k_weights.gather(1, order)[..., None]
        weighted = weighted.take_along_dim(order.argsort(dim=-1)[..., None], dim=1)
        return torch.cat([own.sum(dim=1) for own in weighted.split(1)]).to(x.dtype)

    def _multiplied(
        self,
        name: str,
        rows: torch.Tensor,
        experts: torch.Tensor,
        by_expert: torch.Tensor,
        counts: list[int],
    ) -> torch.Tensor:
        """Return the products of rows with the weights of that name, and their biases.

        Args:
            name: of the weights.
            rows: [n, in_features].
            experts: int64 [n], of each row.
            by_expert: int64 [n], the order of the rows when they are sorted by expert.
            counts: rows of each expert.
        """
        products = _products(self._apart[name], rows, self._weights(name), by_expert, counts)
        if self._experts.has_bias:
            products += getattr(self._experts, f"{name}_bias")[experts]
        return products

    def _rows_apart(self, name: str) -> RowsApart:
        plan = RowPlan.of_weight(self._weights(name)[0], False, ExpertLinear)
        return RowsApart(plan, expert_product)

    def _weights(self, name: str) -> torch.Tensor:
        """Return weights, [num_experts, out_features, in_features]."""
        weights: torch.Tensor = getattr(self._experts, name)
        return weights.mT if self._experts.is_transposed else weights


def _products(
    apart: RowsApart,
    rows: torch.Tensor,
    weights: torch.Tensor,
    order: torch.Tensor,
    counts: list[int],
) -> torch.Tensor:
    """Return the product of each row with the weight of its expert.

    Args:
        apart: multiplies the rows of one expert.
        rows: [n, in_features].
        weights: [num_experts, out_features, in_features].
        order: int64 [n], of the rows when they are sorted by expert.
        counts: rows of each expert.
    """
    shares = zip(rows[order].split(counts), weights, strict=True)
    products = torch.cat([apart(own, weight, None) for own, weight in shares if len(own)])
    found = torch.empty_like(products)
    found[order] = products
    return found


def is_grouped_experts(module: Any) -> bool:
    """Whether a module is experts whose products `RowExperts` shares."""
    names = ("has_gate", "has_bias", "is_transposed", "_apply_gate", "gate_up_proj", "down_proj")
    if not all(hasattr(module, name) for name in names) or not hasattr(module, "config"):
        return False
    arguments = tuple(inspect.signature(module.forward).parameters)
    return arguments in _ARGUMENTS and can_share_products(module)


def can_share_products(experts: Any) -> bool:
    """Whether experts have gates, and multiply rows grouped by expert."""
    is_grouped = experts.config._experts_implementation == "grouped_mm"
    return bool(experts.has_gate and is_grouped)
