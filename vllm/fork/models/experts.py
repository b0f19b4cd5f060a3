"""What mixtures of experts of vLLM ask of a router and of experts that the fork puts in."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from vllm.model_executor.layers.fused_moe.config import RoutingMethodType
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)


class Router(BaseRouter):
    """Chooses the experts of each token.

    Args:
        upstream: the router that the model made.
    """

    def __init__(self, upstream: Any) -> None:
        super().__init__(upstream.top_k, upstream.global_num_experts)
        self._method_type = upstream.routing_method_type

    @property
    def routing_method_type(self) -> RoutingMethodType:
        """What vLLM calls this routing."""
        return self._method_type

    def _compute_routing(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        indices_type: torch.dtype | None,
        *,
        input_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.route(hidden_states, router_logits)

    @abstractmethod
    def route(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights and the indices of the experts of each token, [num_tokens, top_k].

        Args:
            hidden_states: [num_tokens, hidden_size].
            router_logits: [num_tokens, num_experts].
        """


class ExpertsMethod(UnquantizedFusedMoEMethod):
    """Computes the experts that a router has chosen, and no shared ones.

    Args:
        upstream: the method that the model made.
    """

    def __init__(self, upstream: UnquantizedFusedMoEMethod) -> None:
        super().__init__(upstream.moe)

    @property
    def is_monolithic(self) -> bool:
        """Whether the method routes, too: a router does."""
        return False

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return `weighted_sums` (``FusedMoEMethodBase.apply``); the caller adds shared experts."""
        return self.weighted_sums(x, topk_weights, topk_ids)

    @abstractmethod
    def weighted_sums(
        self, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of each token's experts, like `x`.

        Args:
            x: [num_tokens, hidden_size].
            weights: [num_tokens, top_k], of the router.
            indices: of the same shape, likewise.
        """
