"""Gives vLLM's mixtures of experts portable bits, or says which one cannot have them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic.equalisation import exponents_of_columns, exponents_of_rows
from vllm.deterministic.linear import release_weight, sums_of_ranks
from vllm.deterministic.mixtures.activation import ClampedGate, ExpertActivation, Gate
from vllm.deterministic.mixtures.experts import (
    PackedExperts,
    in_parts,
    weighted_sums,
    with_biases,
)
from vllm.deterministic.mixtures.router import is_plain, portable_router
from vllm.deterministic.refusal import refusal
from vllm.distributed import tensor_model_parallel_all_gather
from vllm.fork.live_weights.packed import PackedParameter
from vllm.fork.models.experts import ExpertsMethod
from vllm.fork.models.modules import class_name
from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    pack_weight,
    repack_weight,
    sum_partials,
)
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

_ACTIVATIONS: dict[MoEActivation, ExpertActivation] = {
    MoEActivation.SILU: Gate(Function.SILU),
    MoEActivation.GELU: Gate(Function.GELU),
    MoEActivation.GELU_TANH: Gate(Function.GELU_TANH),
    MoEActivation.SWIGLUOAI: ClampedGate(),
}
_LOADERS = (
    "vllm.model_executor.models.gpt_oss.GptOssRoutedExperts",
    "vllm.model_executor.models.transformers.moe.TransformersRoutedExperts",
)
"""Subclasses of `RoutedExperts` that know other checkpoints, and compute nothing themselves."""


class PortableExpertsMethod(ExpertsMethod):
    """Computes experts with packed weights, which take the place of the parameters.

    Args:
        upstream: the method that the model made.
        activation: of the experts.
    """

    def __init__(self, upstream: UnquantizedFusedMoEMethod, activation: ExpertActivation) -> None:
        super().__init__(upstream)
        self._activation = activation
        self._num_ranks = upstream.moe.tp_size
        self._experts: PackedExperts | None = None
        self._down_bias: torch.Tensor | None = None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the weights of each expert; as many bytes as they had, and 0.8 % more."""
        gate_up = self._packed("w13_weight", layer.w13_weight.data)
        release_weight(layer, "w13_weight")
        down = self._packed("w2_weight", layer.w2_weight.data)
        release_weight(layer, "w2_weight")
        self._experts = PackedExperts(
            gate_up, down, self._activation, getattr(layer, "w13_bias", None)
        )
        self._down_bias = getattr(layer, "w2_bias", None)

    def packed_parameters(self, layer: Any) -> dict[str, PackedParameter]:
        """As in `PacksWeights`; each expert by itself."""
        assert self._experts is not None
        each = PackedParameter(is_read=False, sizes=[1] * len(self._experts.down))
        return {"w13_weight": each, "w2_weight": each}

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """As in `PacksWeights`."""
        assert self._experts is not None
        old = self._experts.gate_up if name == "w13_weight" else self._experts.down
        repack_weight(old[part], rows[0], self._exponents(name, rows)[0])

    def _packed(self, name: str, weights: torch.Tensor) -> list[PackedWeight]:
        """Pack weights of some experts, [experts, out_features, in_features]."""
        pairs = zip(weights, self._exponents(name, weights), strict=True)
        parts = 1 if name == "w13_weight" else self._num_ranks
        return [pack_weight(*pair, parts=parts) for pair in pairs]

    def _exponents(self, name: str, weights: torch.Tensor) -> torch.Tensor:
        """Return the exponents of the channels of some experts, int8 [experts, in_features]."""
        if name == "w13_weight":
            return exponents_of_rows(weights, self._num_ranks)
        return exponents_of_columns(weights, self._num_ranks, self.moe.tp_rank)

    def weighted_sums(
        self, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sums of experts; whole where the experts' channels are split between
        ranks.

        Args:
            x: bfloat16 or float16 [num_tokens, hidden_size].
            weights: float32 [num_tokens, experts of a token].
            indices: int64, of the same shape.
        """
        return in_parts(self._sums_of_part, x, weights, indices)

    def _sums_of_part(
        self, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        assert self._experts is not None
        outputs = self._experts.outputs(x, indices)
        if self._num_ranks > 1:
            outputs = sum_partials(sums_of_ranks(outputs.flatten(0, 1))).view_as(outputs)
        return weighted_sums(with_biases(outputs, indices, self._whole_biases()), weights, x.dtype)

    def _whole_biases(self) -> torch.Tensor | None:
        """Return the biases of the experts' last products, which the first rank has."""
        bias = self._down_bias
        if bias is None or self._num_ranks == 1:
            return bias
        return tensor_model_parallel_all_gather(bias.data, dim=0)[: len(bias)]


def use_portable_experts(name: str, runner: MoERunner) -> None:
    """Give a mixture of experts, which is not loaded yet, portable bits.

    Raises:
        ValueError: it computes something that is not specified.
    """
    experts = runner.routed_experts
    if has_portable_experts(experts):
        return
    if type(runner) is not MoERunner or not _is_known(experts):
        raise refusal(name, runner, "this kind of mixture of experts is not specified")
    if type(experts.quant_method) is not UnquantizedFusedMoEMethod:
        raise refusal(name, runner, "it is quantised")
    for reason, is_given in _objections(runner).items():
        if is_given:
            raise refusal(name, runner, reason)
    if isinstance(runner.gate, GateLinear) and not is_plain(runner.router):
        runner.gate.out_dtype = torch.float32  # as in Transformers
    factor, runner.routed_scaling_factor = runner.routed_scaling_factor, 1.0
    runner.router = portable_router(name, runner, runner.router, factor)
    activation = _ACTIVATIONS[experts.activation]
    experts.quant_method = PortableExpertsMethod(experts.quant_method, activation)
    runner.moe_config.skip_final_all_reduce = True  # the method adds the ranks' parts


def _is_known(experts: RoutedExperts) -> bool:
    return type(experts) is RoutedExperts or class_name(experts) in _LOADERS


def has_portable_experts(layer: nn.Module) -> bool:
    """Return whether `layer` holds the parameters of experts that are taken care of."""
    return isinstance(layer, RoutedExperts) and isinstance(
        layer.quant_method, PortableExpertsMethod
    )


def _objections(runner: MoERunner) -> dict[str, bool]:
    """Return what is not specified, and whether this mixture has it."""
    config, experts = runner.moe_config, runner.routed_experts
    ranks = config.moe_parallel_config
    limits = (experts.swiglu_limit, experts.swiglu_alpha, experts.swiglu_beta)
    return {
        "experts are split between ranks by tensor parallelism alone": (
            ranks.use_ep or ranks.dp_size > 1 or ranks.pcp_size > 1 or ranks.is_sequence_parallel
        ),
        "its model adds the ranks' parts in an order of its own": (
            ranks.tp_size > 1 and config.skip_final_all_reduce
        ),
        f"the activation {experts.activation.value} is not specified": (
            experts.activation not in _ACTIVATIONS or any(limit is not None for limit in limits)
        ),
        "the weights of experts multiply their inputs": experts.apply_router_weight_on_input,
        "adapters of experts are not specified": config.is_lora_enabled,
        "its gates are one product": runner.shared_expert_gate is not None,
        "its model scales float16 numbers against overflow: use bfloat16": (
            runner.routed_scaling_factor != 1.0 and config.in_dtype == torch.float16
        ),
    }
