"""Mixtures of experts with Hugging Face's bits: Transformers' own router and experts, on vLLM's
weights, for each request alone.

Which rows an expert multiplies together depends on the tokens that are sent to it, so other
requests of a step would change the bits. Requests of one token share what is proven to keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from vllm.fork.live_weights.packed import ReadsWeights
from vllm.fork.models.experts import ExpertsMethod, Router
from vllm.hf_layers.layers.single_row_experts import RowExperts
from vllm.hf_layers.models import facts_of
from vllm.hf_layers.products.single_row_products import with_parameters
from vllm.hf_layers.step_rows import query_starts, step_runs
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Experts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class HFRouter(Router):
    """Sends tokens to experts as Transformers' router does.

    Args:
        upstream: vLLM's router.
        router: Transformers' (``MixtralTopKRouter``, for one), with the weight of vLLM's gate.
    """

    def __init__(self, upstream: Any, router: nn.Module) -> None:
        super().__init__(upstream)
        self._router = router

    def route(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights, which are of the router's dtype, and indices, int64; [num_tokens, top_k].

        The logits are computed again: the router does it together with all else.
        """
        spans = pairwise(query_starts(len(hidden_states)))
        parts = [self._router(hidden_states[begin:end]) for begin, end in spans if begin < end]
        _, weights, indices = (torch.cat(found) for found in zip(*parts, strict=True))
        return weights, indices


class HFExpertsMethod(ReadsWeights, ExpertsMethod):
    """Computes experts as Transformers' module does, with the weights as they were loaded.

    Args:
        upstream: the method that the model made.
        experts: Transformers' module (``MixtralExperts``, for one), whose weights are not read.
    """

    def __init__(self, upstream: UnquantizedFusedMoEMethod, experts: nn.Module) -> None:
        super().__init__(upstream)
        self._template = [experts]  # in a list, for its weights are not the model's
        self._compute: tuple[Experts, Experts] | None = None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Keep the weights: [num_experts, 2 * intermediate_size, hidden_size], the gates' rows
        before the others, and [num_experts, hidden_size, intermediate_size].
        """
        weights = {"gate_up_proj": layer.w13_weight, "down_proj": layer.w2_weight}
        experts = with_parameters(self._template[0], **weights)
        self._compute = (experts, RowExperts(experts))

    def weighted_sums(
        self, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sums of experts, like `x`.

        Args:
            x: [num_tokens, hidden_size].
            weights: [num_tokens, top_k], of `HFRouter`.
            indices: int64, of the same shape.
        """
        assert self._compute is not None
        whole, rows = self._compute
        parts = [
            (rows if is_single else whole)(x[begin:end], indices[begin:end], weights[begin:end])
            for is_single, begin, end in step_runs(len(x))
        ]
        return torch.cat(parts)


def use_hf_experts(model: nn.Module, config: PreTrainedConfig) -> None:
    """Give the mixtures of `model`, which is not loaded yet, Transformers' routers and experts.

    Quantised experts, those with adapters, and those that are spread over ranks keep vLLM's.
    """
    blocks = [block for block in model.modules() if _has_known_experts(block, config)]
    if not blocks:
        return
    mixture = _hf_mixture(config)
    for block in blocks:
        runner: Any = block.experts
        gate: Any = block.gate
        runner.router = HFRouter(runner.router, with_parameters(mixture.gate, weight=gate.weight))
        experts = runner.routed_experts
        experts.quant_method = HFExpertsMethod(experts.quant_method, mixture.experts)


def _has_known_experts(block: nn.Module, config: PreTrainedConfig) -> bool:
    runner = getattr(block, "experts", None)
    return isinstance(runner, MoERunner) and why_not_hf_experts(runner, config) is None


def why_not_hf_experts(runner: MoERunner, config: PreTrainedConfig) -> str | None:
    """Return why experts keep vLLM's kernel; None if Transformers' can take its place.

    Args:
        runner: of the experts, as the model made it.
        config: Transformers' configuration of the model.
    """
    method, moe_config = runner.routed_experts.quant_method, runner.moe_config
    if not facts_of(config).mixture:
        return f"the experts of {config.model_type} keep vLLM's kernel"
    if type(method) is not UnquantizedFusedMoEMethod:
        return f"experts of another kind ({type(method).__name__})"
    if moe_config.moe_parallel_config.use_ep:
        return "experts that are spread over ranks"
    return "experts with adapters" if moe_config.is_lora_enabled else None


def _hf_mixture(config: PreTrainedConfig) -> Any:
    """Return a mixture of Transformers' model, without weights: the model decides how its experts
    are computed.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(deepcopy(config))
    return next(one for one in model.modules() if hasattr(one, "experts") and hasattr(one, "gate"))
