"""Experts that are chosen with a correction, which vLLM's router for CPUs leaves out."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter


def use_corrections(model: nn.Module) -> None:
    """Let routers without groups add the correction of each expert (ERNIE 4.5's), and score by
    sigmoids (MiniMax-M2's): ``CPURouter`` does so in groups alone.

    Args:
        model: not loaded yet; changed in place.
    """
    for layer in model.modules():
        router = getattr(layer, "router", None)
        if isinstance(router, CPURouter) and _is_left_out(router):
            router.custom_routing_function = partial(_route, router)


def is_corrected(router: CPURouter) -> bool:
    """Return whether the function by which a router chooses is the one of `use_corrections`."""
    own = router.custom_routing_function
    return isinstance(own, partial) and own.func is _route


def _is_left_out(router: CPURouter) -> bool:
    if router.use_grouped_topk or router.custom_routing_function is not None:
        return False
    has_correction = router.e_score_correction_bias is not None
    return router.scoring_func == "sigmoid" or (router.scoring_func == "softmax" and has_correction)


def _route(
    router: CPURouter,
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As a ``custom_routing_function``; the correction chooses experts, and weighs none.

    Source: ``Ernie4_5_MoeTopKRouter``, ``MiniMaxM2SparseMoeBlock``.
    """
    logits = gating_output.float()
    scores = logits.sigmoid() if router.scoring_func == "sigmoid" else logits.softmax(-1)
    corrected = scores
    if router.e_score_correction_bias is not None:
        corrected = scores + router.e_score_correction_bias
    experts = corrected.topk(topk, dim=-1).indices
    weights = scores.gather(-1, experts)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * router.routed_scaling_factor, experts
