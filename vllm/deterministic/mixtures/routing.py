"""Which experts a token goes to; see ``docs/numerics/operations.md``, "Mixtures of experts"."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic.refusal import refusal
from vllm.fork.models.experts import Router
from vllm.fork_kernels.portable.functions import Function, portable_map
from vllm.fork_kernels.portable.logits import portable_log_softmax, portable_top_k
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter

_LEAST_EXPONENTIAL = 2.0**-32
"""What is less counts 0, so that no weight is subnormal, where settings of processors differ."""


class PortableRouter(Router):
    """Sends each token to the experts with the largest logits.

    Args:
        upstream: what the model made, checked by `portable_router`.
    """

    def __init__(self, upstream: CPURouter | FusedTopKRouter) -> None:
        super().__init__(upstream)
        self._is_renormalised = upstream.renormalize

    def route(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `route` returns for the logits."""
        return route(router_logits, self.top_k, is_renormalised=self._is_renormalised)


def route(
    logits: torch.Tensor, count: int, *, is_renormalised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and indices of the experts of each token, in the order of their logits.

    Args:
        logits: float32, bfloat16 or float16 [num_tokens, num_experts].
        count: experts for each token.
        is_renormalised: whether the weights of a token's experts add up to 1; else those of all do.

    Returns:
        float32 and int64 [num_tokens, count].
    """
    logits = logits.contiguous()
    chosen, indices = portable_top_k(logits, count)
    if is_renormalised:
        exponentials = _exponentials(chosen - chosen[:, :1])
        total = exponentials[:, 0]
        for rank in range(1, count):
            total = total + exponentials[:, rank]
        return exponentials / total.unsqueeze(1), indices
    return _exponentials(portable_log_softmax(logits).gather(1, indices)), indices


def _exponentials(x: torch.Tensor) -> torch.Tensor:
    values = portable_map(x, Function.EXP)
    return values.masked_fill(values < _LEAST_EXPONENTIAL, 0.0)


def portable_router(name: str, layer: nn.Module, router: Any) -> PortableRouter:
    """Return what takes the place of the router of a mixture of experts.

    Raises:
        ValueError: it chooses or weighs in a way that is not specified.
    """
    if type(router) not in (CPURouter, FusedTopKRouter):  # of a CPU, and the plain one of a GPU
        raise refusal(name, layer, f"the routing of {type(router).__name__} is not specified")
    objections = {
        f"weights by {router.scoring_func} are not specified": router.scoring_func != "softmax",
        "balancing the load of experts is not specified": router.eplb_state is not None,
    }
    if isinstance(router, CPURouter):
        objections |= _objections_on_cpu(router)
    for reason, is_given in objections.items():
        if is_given:
            raise refusal(name, layer, reason)
    return PortableRouter(router)


def _objections_on_cpu(router: CPURouter) -> dict[str, bool]:
    """Return what a GPU has routers of their own for."""
    return {
        "it chooses among groups of experts": router.use_grouped_topk,
        "it chooses experts with a function of its own": router.custom_routing_function is not None,
        "a correction of the experts' scores is not specified": (
            router.e_score_correction_bias is not None
        ),
        "a factor of the experts' weights is not specified": router.routed_scaling_factor != 1.0,
    }
