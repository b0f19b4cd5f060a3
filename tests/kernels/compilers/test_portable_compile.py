"""The portable operations as torch sees them: schemas, fake functions, torch.compile."""

from typing import Any

import pytest
import torch

from tests.kernels.attention.portable_attention_cases import make_case
from tests.kernels.logits.seen_token_cases import int32
from tests.kernels.portable_cases import assert_same, numbers
from tests.kernels.states.states_cases import convolution, delta_rule, mamba2
from vllm.fork_kernels.portable.attention import attention_cache_shape
from vllm.fork_kernels.portable.functions import Function, portable_gated
from vllm.fork_kernels.portable.logits import portable_log_softmax
from vllm.fork_kernels.portable.norm import portable_rms_norm
from vllm.fork_kernels.portable.rotary import portable_rotate, rotary_frequencies, rotary_table
from vllm.fork_kernels.portable.sampling import portable_draw, portable_filter

ROWS, SIZE = 4, 64


def state_arguments() -> dict[str, tuple[Any, ...]]:
    requests = (int32([1]), int32([0, 20]), torch.tensor([True]))
    conv, scan, rule = (make(20, dtype=torch.float32) for make in (convolution, mamba2, delta_rule))
    x, dt, b, c = scan.tokens.values()
    a_log, d, dt_bias = scan.parameters.values()
    states = [torch.zeros(2, *layer.state) for layer in (conv, scan, rule)]
    return {
        "portable_causal_conv": (
            *(*conv.tokens.values(), *conv.parameters.values()),
            *(states[0], *requests, True),
        ),
        "portable_mamba2_scan": (
            *(x, dt, a_log, b, c, d, dt_bias, states[1], *requests),
            *(0.0, 1.0),
        ),
        "portable_gated_delta_rule": (
            *(*rule.tokens.values(), *rule.parameters.values()),
            *(states[2], *requests, 0.25, True),
        ),
    }


def op_arguments() -> dict[str, tuple[Any, ...]]:
    x = numbers(ROWS, SIZE, seed=1, dtype=torch.bfloat16)
    case = make_case(20)
    cache = torch.zeros(attention_cache_shape(2, 2, 64, 16), dtype=torch.uint8)
    positions = torch.arange(20)
    ones = torch.ones(ROWS)
    return {
        **state_arguments(),
        "portable_gated_rms_norm": (x, x, None, 1e-6, SIZE, False, "silu"),
        "portable_map": (x, "silu"),
        "portable_gated": (x, "gelu"),
        "portable_norm": (x, x.clone(), x[0].clone(), None, 1e-6, 0.0, False),
        "portable_rotary_frequencies": (SIZE, 10000.0),
        "portable_rotary_table": (rotary_frequencies(SIZE, 10000.0), 10, 1.0),
        "portable_rotate": (case.query, positions, torch.zeros(20, SIZE), True),
        "portable_append": (case.keys, case.values, cache, positions),
        "portable_attention": (
            *(case.query, cache, int32([0, 1]).view(1, 2), int32([0, 20]), int32([20])),
            *(0.125, 0, 0.0, torch.ones(4), None, torch.empty_like(case.query)),
        ),
        "portable_log_softmax": (x,),
        "portable_argmax": (x,),
        "portable_top_k": (x, 5),
        "portable_filter": (x.float(), ones, int32([0] * ROWS), ones, ones * 0),
        "portable_draw": (x, torch.arange(ROWS), torch.arange(ROWS)),
    }


@pytest.mark.parametrize("name", op_arguments())
def test_opcheck(name: str) -> None:
    """Torch's own tests of a custom op."""
    torch.library.opcheck(getattr(torch.ops.vllm_fork, name).default, op_arguments()[name])


def test_a_layer() -> None:
    """What is changed in place is declared: a compiled graph has the bits of the plain one."""
    table = rotary_table(rotary_frequencies(SIZE, 10000.0), 10)

    def layer(x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        y = portable_rms_norm(x, residual=residual)
        heads = y.view(ROWS, 1, SIZE)
        portable_rotate(heads, positions, table)
        return portable_gated(torch.cat([y, residual], dim=-1), Function.SILU)

    x, residual = (numbers(ROWS, SIZE, seed=s, dtype=torch.bfloat16) for s in (2, 3))
    positions = torch.arange(ROWS)
    plain_residual = residual.clone()
    plain = layer(x, plain_residual, positions)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same(compiled(x, residual, positions), plain)
    assert_same(residual, plain_residual)


def test_a_step_of_sampling() -> None:
    def step(logits: torch.Tensor, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ones = torch.ones(ROWS)
        left = portable_filter(logits, ones, seeds.int() + 3, ones * 0.9, ones * 0)
        return portable_draw(left, seeds, seeds), portable_log_softmax(logits)

    logits, seeds = numbers(ROWS, 200, seed=4, scale=8.0), torch.arange(ROWS)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(compiled(logits, seeds), step(logits, seeds), strict=True):
        assert_same(actual, expected)
