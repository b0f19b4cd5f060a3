"""Mixtures of experts; see ``docs/numerics/operations.md``, "Mixtures of experts".

Families write routers and experts in classes of their own each. Which routing and which activation
they have is found by asking them, so that a new family needs no entry, and others are refused.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any, get_args

import torch
from torch import nn
from torch.nn.functional import linear

from vllm.deterministic.mixtures.activation import ClampedGate, ExpertActivation, Gate
from vllm.deterministic.mixtures.experts import PackedExperts, in_parts, with_biases
from vllm.deterministic.mixtures.routing import Routing, Scoring
from vllm.fork_kernels.portable.functions import Function

from .activation import function_of
from .form import Form, become
from .gradients.functions import elementwise
from .gradients.mixture import route, weighted_sums
from .gradients.product import product
from .sample import (
    TOLERANCE,
    difference,
    largest_difference,
    rows_of_all_sizes,
    sample_rows,
)
from .weights import ExpertWeights, LayerWeights, are_transposed

__all__ = ["ExpertsForm", "RouterForm", "adopt_mixture"]

_ROUTER_TOLERANCE = 1e-5  # both are in float32
_SCALING = ("routed_scaling_factor", "router_scaling_factor")
_ALPHA = 1.702  # of `Function.QUICK_GELU`
_WITH_SHARED_EXPERT = {"gate", "experts", "shared_expert", "shared_expert_gate"}


class RouterForm(Form):
    """Sends each token to its experts (`route`).

    Attributes:
        portable_weights: of the router alone.
        portable_routing: how.
        portable_dtype: of its logits.
        portable_order: of what it returns: where its logits, weights and indices are.
        portable_is_corrected: whether a correction is added to scores when it chooses.
        weight: the parameter; None if the model is sealed.
    """

    portable_weights: LayerWeights
    portable_routing: Routing
    portable_dtype: torch.dtype
    portable_order: tuple[int, int, int]
    portable_is_corrected: bool
    weight: nn.Parameter | None

    def forward(
        self, x: torch.Tensor, correction: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Return logits, and weights (float32) and indices [num_tokens, top_k], of x [...,
        hidden_size], in the order that the family has.

        Args:
            x: likewise.
            correction: [num_experts], where the router does not keep it.
        """
        (packed,) = self.portable_weights.of()
        bias = getattr(self, "bias", None)
        logits = product(x.flatten(0, -2), self.weight, bias, packed, self.portable_dtype)
        if not self.portable_is_corrected:
            correction = None
        elif correction is None:
            correction = _correction(self)
        answer = (logits, *route(logits, self.portable_routing, correction))
        return tuple(answer[self.portable_order.index(place)] for place in range(3))


class ExpertsForm(Form):
    """The weighted sum of the experts of each token.

    Attributes:
        portable_weights: of the experts.
        portable_activation: between their products.
        gate_up_proj: the parameter, as `down_proj`; None if the model is sealed.
    """

    portable_weights: ExpertWeights
    portable_activation: ExpertActivation
    gate_up_proj: nn.Parameter | None
    down_proj: nn.Parameter | None

    def forward(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [num_tokens, hidden_size] of x of the same shape.

        Args:
            x: bfloat16 or float16.
            indices: int64 [num_tokens, experts of a token].
            weights: float32, of the same shape.
        """
        experts = self._experts()
        biases = getattr(self, "down_proj_bias", None)

        def compute(x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
            outputs = with_biases(experts.outputs(x, indices), indices, biases)
            return weighted_sums(outputs, weights, x.dtype)

        return in_parts(compute, x, weights, indices)

    def _experts(self) -> PackedExperts:
        bias = getattr(self, "gate_up_proj_bias", None)
        packed = (*self.portable_weights.of(), self.portable_activation, bias)
        if self.gate_up_proj is None or self.down_proj is None:
            return PackedExperts(*packed)
        matrices: list[torch.Tensor] = [self.gate_up_proj, self.down_proj]
        if are_transposed(*matrices):
            matrices = [one.mT for one in matrices]
        # Views of all experts at once: their gradients are put together in one copy.
        return _DifferentiableExperts(*packed, *(one.unbind() for one in matrices))


@dataclass(frozen=True)
class _DifferentiableExperts(PackedExperts):
    gate_up_weights: Sequence[torch.Tensor] = ()
    down_weights: Sequence[torch.Tensor] = ()

    def _output(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        bias = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        gate_up = product(rows, self.gate_up_weights[expert], bias, self.gate_up[expert])
        down = self.down[expert]
        opened = self.activation(gate_up, down)
        return product(opened, self.down_weights[expert], None, down, torch.float32)


class SharedExpertForm(Form):
    """A mixture with an expert for all tokens, whose result a gate weighs."""

    gate: nn.Module
    experts: nn.Module
    shared_expert: nn.Module
    shared_expert_gate: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden_size] of x [..., hidden_size]; sigmoid and product are rounded."""
        rows = x.flatten(0, -2)
        _, weights, indices = self.gate(rows)
        routed = self.experts(rows, indices, weights)
        opened = elementwise(self.shared_expert_gate(rows), Function.SIGMOID)
        return (routed + opened * self.shared_expert(rows)).view(x.shape)


@torch.no_grad()
def adopt_mixture(module: Any) -> None:
    """Give a mixture's experts, its router, or the whole their form; other modules stay."""
    if {name for name, _ in module.named_children()} == _WITH_SHARED_EXPERT:
        _adopt_whole(module)
    elif _may_route(module) and (found := _routing_of(module)) is not None:
        routing, order, is_corrected = found
        become(
            *(module, RouterForm),
            portable_weights=LayerWeights([module]),
            portable_routing=routing,
            portable_dtype=_dtype_of_logits(module, order[0]),
            portable_order=order,
            portable_is_corrected=is_corrected,
        )
    elif (activation := _activation_of(module)) is not None:
        weights = ExpertWeights(module)
        form = {"portable_weights": weights, "portable_activation": activation}
        if _agrees(module, weights, activation):
            become(module, ExpertsForm, **form)


def _adopt_whole(module: Any) -> None:
    parameter = next(module.parameters())
    rows = sample_rows(module.gate.weight.shape[1], parameter.dtype, parameter.device)[None]
    if difference(module(rows), SharedExpertForm.forward(module, rows)) < TOLERANCE:
        become(module, SharedExpertForm)


# --- routers --------------------------------------------------------------------------------------
def _may_route(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return (
        isinstance(getattr(module, "top_k", None), int)
        and isinstance(weight, nn.Parameter)
        and weight.dim() == 2
        and {*module._parameters} <= {"weight", "bias", "e_score_correction_bias"}
        and len(inspect.signature(module.forward).parameters) in (1, 2)
    )


def _takes_correction(module: Any) -> bool:
    return len(inspect.signature(module.forward).parameters) == 2


def _correction(module: Any) -> torch.Tensor | None:
    """Return what a router adds to scores when it chooses, float32 [num_experts], or None."""
    holder = getattr(module, "moe_statics", module)
    correction = getattr(holder, "e_score_correction_bias", None)
    return None if correction is None else correction.flatten().float()


def _routing_of(module: Any) -> tuple[Routing, tuple[int, int, int], bool] | None:
    """Return how a router chooses and weighs, where in its answer logits, weights and indices are,
    and whether it corrects scores; None if in no way that is specified.
    """
    trial = _random_copy(module)
    x = rows_of_all_sizes(trial.weight.shape[1], torch.float32)
    correction = _correction(trial)
    if _takes_correction(module):
        correction = sample_rows(len(trial.weight), torch.float32)[0] * 0.1
    answer = trial(x, correction) if _takes_correction(module) else trial(x)
    logits = linear(x, trial.weight, getattr(trial, "bias", None))
    order = _order_of(answer, logits, module.top_k)
    if order is None:
        return None
    _, weights, indices = (answer[place] for place in order)
    expected = torch.zeros_like(logits).scatter(1, indices, weights.float())
    for routing, added in combinations(_candidates(module), (correction, None)):
        own_weights, own_indices = route(logits, routing, added)
        actual = torch.zeros_like(logits).scatter(1, own_indices, own_weights)
        if largest_difference(expected, actual) < _ROUTER_TOLERANCE:
            return routing, order, added is not None
    return None


def _order_of(answer: Any, logits: torch.Tensor, count: int) -> tuple[int, int, int] | None:
    if not isinstance(answer, tuple) or len(answer) != 3:
        return None
    if not all(isinstance(one, torch.Tensor) and one.dim() == 2 for one in answer):
        return None
    of_indices = [i for i, one in enumerate(answer) if not one.is_floating_point()]
    of_logits = [
        i
        for i, one in enumerate(answer)
        if i not in of_indices
        if one.shape == logits.shape and difference(logits, one) < _ROUTER_TOLERANCE
    ]
    if len(of_indices) != 1 or len(of_logits) != 1:
        return None
    (own_weights,) = {0, 1, 2} - {*of_indices, *of_logits}
    order = (of_logits[0], own_weights, of_indices[0])
    return order if answer[own_weights].shape == (len(logits), count) else None


def _random_copy(module: Any) -> Any:
    """Return a router like a module, on the CPU in float32, with weights that tell ways apart."""
    trial = copy.deepcopy(module).to("cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    for tensor in (*trial.parameters(), *trial.buffers()):
        scale = 2 * tensor.shape[-1] ** -0.5 if tensor.dim() == 2 else 0.1
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    return trial


def _candidates(module: Any) -> Iterator[Routing]:
    groups = getattr(module, "num_group", getattr(module, "n_group", None)) or 1
    if groups > 1 and module.weight.shape[0] < 2 * groups:  # of one expert: not specified
        return
    chosen_groups = getattr(module, "topk_group", None) or 1
    scaling = [getattr(module, name, None) for name in _SCALING]
    factors = {1.0, *(float(one) for one in scaling if one)}
    for scoring, is_renormalised, factor in combinations(
        get_args(Scoring), (True, False), sorted(factors)
    ):
        yield Routing(module.top_k, is_renormalised, scoring, groups, chosen_groups, factor)


def _dtype_of_logits(module: Any, place: int) -> torch.dtype:
    """Return the dtype to which a router's product is rounded.

    Args:
        module: the router.
        place: of logits in its answer.
    """
    rows = sample_rows(module.weight.shape[1], module.weight.dtype, module.weight.device)
    more = (torch.zeros(len(module.weight)),) if _takes_correction(module) else ()
    logits: torch.Tensor = module(rows, *more)[place]
    rounded = logits.to(rows.dtype)
    return rows.dtype if torch.equal(rounded.float(), logits.float()) else torch.float32


# --- experts --------------------------------------------------------------------------------------
def _activation_of(module: Any) -> ExpertActivation | None:
    """Return what experts compute between their products; None if nothing that is specified."""
    names = set(getattr(module, "_parameters", ()))
    biases = {"gate_up_proj_bias", "down_proj_bias"}
    if not {"gate_up_proj", "down_proj"} <= names or names - biases - {"gate_up_proj", "down_proj"}:
        return None
    if len(inspect.signature(module.forward).parameters) != 3:
        return None
    if getattr(module, "alpha", None) == _ALPHA and hasattr(module, "limit"):
        return ClampedGate(float(module.limit))
    function = function_of(getattr(module, "act_fn", None))
    return None if function is None else Gate(function)


def _agrees(module: Any, weights: ExpertWeights, activation: ExpertActivation) -> bool:
    """Return whether experts compute what their form would."""
    gate_up, down = weights.of()
    experts = PackedExperts(gate_up, down, activation, getattr(module, "gate_up_proj_bias", None))
    parameter = module.gate_up_proj
    x = rows_of_all_sizes(gate_up[0].in_features, parameter.dtype, parameter.device)
    indices = torch.arange(len(x), device=x.device).unsqueeze(1) % len(down)
    ones = torch.ones_like(indices, dtype=torch.float32)
    outputs = with_biases(
        experts.outputs(x, indices), indices, getattr(module, "down_proj_bias", None)
    )
    actual = weighted_sums(outputs, ones, x.dtype)
    try:
        expected = module(x, indices, ones)
    except Exception:  # of any class: they want something else than these rows
        return False
    return largest_difference(expected, actual) < TOLERANCE
