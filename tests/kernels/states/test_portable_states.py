"""Layers with states have the bits of the reference."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.portable_cases import DTYPES, as_floats, assert_same, numbers, rounded
from tests.kernels.states import portable_states_reference as reference
from tests.kernels.states.states_cases import LAYERS, Layer, convolution, delta_rule, mamba2
from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.states import portable_gated_rms_norm

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("convolution", {"channels": 600, "width": 4}),
    ("convolution", {"channels": 7, "width": 2, "has_bias": False}),
    ("convolution", {"channels": 5, "width": 1}),
    ("convolution", {"channels": 33, "width": 5, "activation": None}),
    ("mamba2", {"heads": 6, "columns": 64, "groups": 2, "rows": 32}),
    ("mamba2", {"heads": 3, "columns": 80, "groups": 1, "rows": 5, "has_d": False}),
    ("mamba2", {"heads": 2, "columns": 1, "groups": 2, "rows": 1}),
    ("mamba2", {"heads": 2, "columns": 130, "rows": 17, "limits": (0.5, 2.0)}),
    ("delta rule", {"heads": 6, "columns": 64, "key_heads": 2, "rows": 32}),
    ("delta rule", {"heads": 3, "columns": 130, "key_heads": 1, "rows": 6, "scale": 0.3}),
    ("delta rule", {"heads": 1, "columns": 1, "key_heads": 1, "rows": 1}),
    ("delta rule", {"rows": 300, "doubles_beta": True}),
]


def assert_as_expected(layer: Layer, state: torch.Tensor | None = None) -> None:
    for actual, expected in zip(layer.alone(state), layer.expected(state), strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "sizes"), VARIANTS, ids=str)
def test_the_reference(name: str, sizes: dict[str, Any], dtype: torch.dtype) -> None:
    layer = LAYERS[name](21, dtype=dtype, **sizes)
    assert_as_expected(layer)
    state = numbers(*layer.state, seed=51, dtype=layer.state_dtype, scale=2.0)
    assert_as_expected(layer, state)


@pytest.mark.parametrize("name", LAYERS)
def test_more_tokens_than_are_prepared_at_once(name: str) -> None:
    assert_as_expected(LAYERS[name](67))


@pytest.mark.parametrize("name", LAYERS)
def test_formats_of_their_own(name: str) -> None:
    layer = LAYERS[name](9, dtype=torch.float16)
    for argument in [one for one in layer.tokens if one not in ("x", "v")]:
        layer.tokens[argument] = layer.tokens[argument].bfloat16()
    for argument, parameter in layer.parameters.items():
        layer.parameters[argument] = None if parameter is None else parameter.bfloat16()
    assert_as_expected(layer)


def test_decays_that_are_too_small_to_be_seen() -> None:
    """Without the limit, a state that nothing enters would keep subnormal numbers."""
    for exponent, is_kept in ((-44.0, True), (-44.5, False), (-90.0, False)):
        layer = mamba2(1, heads=1, columns=8, groups=1, rows=3)
        layer.tokens["b"][:] = 0
        layer.parameters["a_log"] = torch.zeros(1)
        layer.parameters["dt_bias"] = torch.zeros(1)
        layer.tokens["dt"] = torch.full((1, 1), -exponent)
        state = numbers(*layer.state, seed=52, scale=2.0)
        assert_as_expected(layer, state)
        assert layer.alone(state)[1].any() == is_kept


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite(name: str, value: float) -> None:
    """In every argument, one after the other."""
    given = LAYERS[name](12)
    for argument in given.tokens:
        layer = LAYERS[name](12)
        layer.tokens[argument][5].view(-1)[1] = value
        assert_as_expected(layer)
    for argument in given.parameters:
        layer = LAYERS[name](12)
        parameter = layer.parameters[argument]
        assert parameter is not None
        parameter.view(-1)[1] = value
        assert_as_expected(layer)
    state = numbers(*given.state, seed=53, dtype=given.state_dtype)
    state.view(-1)[3] = value
    assert_as_expected(given, state)


def test_subnormal_numbers_are_kept() -> None:
    layer = convolution(9, dtype=torch.float32, has_bias=False, activation=None)
    layer.tokens["x"] *= 2.0**-128
    assert_as_expected(layer)
    assert layer.alone()[0].any()
    layer = delta_rule(9, dtype=torch.float32)
    layer.tokens["v"] *= 2.0**-128
    assert_as_expected(layer)
    assert layer.alone()[1].any()


def expected_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor | None, group: int, **options: Any
) -> torch.Tensor:
    w = None if weight is None else as_floats(weight)
    with np.errstate(all="ignore"):
        rows = [
            reference.gated_norm(row, one, w, 1e-5, group, **options)
            for row, one in zip(as_floats(x), as_floats(gate), strict=True)
        ]
    return rounded(np.stack(rows), x.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize(("columns", "group"), [(1, 1), (128, 128), (600, 600), (600, 150)])
def test_gated_norm(columns: int, group: int, norm_before_gate: bool, dtype: torch.dtype) -> None:
    x = numbers(5, columns, seed=61, dtype=dtype, scale=4.0)
    gate = numbers(5, columns, seed=62, dtype=dtype, scale=8.0)
    x[2], gate[3, -1] = torch.nan, -torch.inf
    weight = numbers(columns, seed=63, dtype=dtype, scale=2.0)
    for activation in (Function.SILU, Function.SIGMOID):
        options: dict[str, Any] = {"norm_before_gate": norm_before_gate, "activation": activation}
        actual = portable_gated_rms_norm(x, gate, weight, 1e-5, group_size=group, **options)
        assert_same(actual, expected_norm(x, gate, weight, group, **options))
        without = portable_gated_rms_norm(x, gate, None, 1e-5, **options)
        assert_same(without, expected_norm(x, gate, None, columns, **options))


def test_a_gated_norm_of_slices() -> None:
    whole = numbers(6, 3, 100, seed=64, dtype=torch.bfloat16, scale=4.0)
    x, gate, weight = whole[..., :32], whole[..., 40:72], numbers(32, seed=65)
    heads = portable_gated_rms_norm(x, gate, weight)
    rows = portable_gated_rms_norm(x.reshape(-1, 32), gate.reshape(-1, 32), weight)
    assert_same(heads.view(-1, 32), rows)
    assert_same(portable_gated_rms_norm(x[:, 0], gate[:, 0], weight), heads[:, 0])
