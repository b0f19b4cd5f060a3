"""vLLM's mixtures whose routers score, correct, group and scale in other ways than Mixtral's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.deterministic.test_experts import (
    CHOSEN,
    HIDDEN,
    NUM_EXPERTS,
    mixture,
    parameters,
    router_logits,
)
from tests.kernels.portable_cases import assert_same, numbers
from vllm.deterministic.mixtures.routing import Routing, route

CORRECTIONS = numbers(NUM_EXPERTS, seed=5, scale=0.5)


@pytest.mark.parametrize(
    ("arguments", "routing", "correction"),
    [
        ({"scoring_func": "sigmoid"}, Routing(CHOSEN, scoring="sigmoid"), None),
        ({"e_score_correction_bias": CORRECTIONS}, Routing(CHOSEN), CORRECTIONS),
        ({"routed_scaling_factor": 2.5}, Routing(CHOSEN, factor=2.5), None),
        (
            {"routed_scaling_factor": 2.5, "apply_routed_scale_to_output": True},
            Routing(CHOSEN, factor=2.5),
            None,
        ),
    ],
)
def test_what_vllm_calls_it(
    configured: Any,
    arguments: dict[str, Any],
    routing: Routing,
    correction: torch.Tensor | None,
) -> None:
    runner = mixture(**arguments)
    logits = router_logits(21, torch.float32)
    x = numbers(21, HIDDEN, seed=11, dtype=torch.bfloat16)
    weights, indices = runner.router.route(x, logits)
    expected_weights, expected_indices = route(logits, routing, correction)
    assert_same(weights, expected_weights)
    assert torch.equal(indices, expected_indices)


def test_a_factor_of_float16_is_refused(configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's models scale what is around the mixture then."""
    monkeypatch.setattr(configured.model_config, "dtype", torch.float16)
    with pytest.raises(ValueError, match="scales float16 numbers against overflow"):
        mixture(routed_scaling_factor=2.5, apply_routed_scale_to_output=True)


def test_biases_of_experts(configured: Any) -> None:
    """gpt-oss's: the layer has those of both products."""
    from vllm.forward_context import set_forward_context

    results = []
    for has_bias in (False, True):
        runner = mixture(activation="swigluoai", has_bias=has_bias)
        experts = runner.routed_experts
        experts.w13_weight.data, experts.w2_weight.data = parameters(torch.bfloat16)
        if has_bias:
            experts.w13_bias.data.zero_()
            experts.w2_bias.data.fill_(1.0)
        experts.quant_method.process_weights_after_loading(experts)
        x = numbers(21, HIDDEN, seed=11, dtype=torch.bfloat16)
        with set_forward_context(None, configured):
            results.append(runner(x, router_logits(21, torch.bfloat16)))
        configured.compilation_config.static_forward_context.clear()
    without, with_ones = (result.float() for result in results)
    assert torch.allclose(with_ones, without + 1.0, rtol=0.01, atol=0.02)
    assert not torch.equal(with_ones, without)
