"""Gives vLLM's routers portable bits, or says which one cannot have them."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import nn

from vllm.deterministic.mixtures.routing import Routing, Scoring, route
from vllm.deterministic.refusal import refusal
from vllm.fork.models.experts import Router
from vllm.hf_layers.definition.routing import is_corrected
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import FusedTopKBiasRouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter
from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import GroupedTopKRouter

_ROUTERS = (CPURouter, FusedTopKRouter, FusedTopKBiasRouter, GroupedTopKRouter)
"""CPUs have the first one alone."""


class PortableRouter(Router):
    """Sends each token to its experts (`route`).

    Args:
        upstream: what the model made, checked by `portable_router`.
        routing: how.
        correction: float32 [num_experts], filled when the model is loaded; None for none.
    """

    def __init__(self, upstream: Any, routing: Routing, correction: torch.Tensor | None) -> None:
        super().__init__(upstream)
        self._routing = routing
        self.e_score_correction_bias = correction  # by the name under which vLLM's have it

    def route(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `route` returns for the logits."""
        correction = self.e_score_correction_bias
        if correction is not None:  # Transformers has both in float32, or neither
            correction = correction.flatten().to(router_logits.dtype).float()
        return route(router_logits, self._routing, correction)


def portable_router(name: str, layer: nn.Module, router: Any, factor: float) -> PortableRouter:
    """Return what takes the place of the router of a mixture of experts.

    Args:
        name: of the mixture.
        layer: the mixture.
        router: what it has.
        factor: of the experts' sum, which becomes one of their weights, as in Transformers.

    Raises:
        ValueError: it chooses or weighs in a way that is not specified.
    """
    if type(router) not in _ROUTERS:
        raise refusal(name, layer, f"the routing of {type(router).__name__} is not specified")
    for reason, is_given in _objections(router).items():
        if is_given:
            raise refusal(name, layer, reason)
    groups, chosen_groups = _groups(router)
    routing = Routing(
        count=router.top_k,
        is_renormalised=router.renormalize,
        scoring=router.scoring_func,
        num_groups=groups,
        num_chosen_groups=chosen_groups,
        factor=getattr(router, "routed_scaling_factor", 1.0) * factor,
    )
    return PortableRouter(router, routing, getattr(router, "e_score_correction_bias", None))


def is_plain(router: Any) -> bool:
    """Return whether the logits of a router decide by themselves, by a softmax."""
    has_correction = getattr(router, "e_score_correction_bias", None) is not None
    return not (_is_grouped(router) or has_correction or router.scoring_func != "softmax")


def _is_grouped(router: Any) -> bool:
    return bool(getattr(router, "use_grouped_topk", isinstance(router, GroupedTopKRouter)))


def _groups(router: Any) -> tuple[int, int]:
    """Return how many groups of experts there are, and how many are chosen."""
    if not _is_grouped(router):
        return 1, 1
    return router.num_expert_group or 1, router.topk_group or 1


def _objections(router: Any) -> dict[str, bool]:
    def has(name: str) -> bool:
        return getattr(router, name, None) is not None

    groups, _ = _groups(router)
    return {
        f"weights by {router.scoring_func} are not specified": (
            router.scoring_func not in get_args(Scoring)
        ),
        "balancing the load of experts is not specified": has("eplb_state"),
        "it chooses experts with a function of its own": (
            has("custom_routing_function") and not is_corrected(router)
        ),
        "it chooses experts by token ids": has("_hash_indices_table"),
        "a correction for images is not specified": has("bias_vl"),
        "shared experts are routed": bool(getattr(router, "num_fused_shared_experts", 0)),
        "groups of one expert are not specified": (
            groups > 1 and router.global_num_experts < 2 * groups
        ),
    }
