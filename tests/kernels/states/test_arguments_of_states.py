"""Wrong arguments: one sentence that names the operator and the argument, and nothing changed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.kernels.logits.seen_token_cases import int32
from tests.kernels.portable_cases import assert_same, numbers
from tests.kernels.states.states_cases import LAYERS, Layer
from vllm.fork_kernels.portable.states import portable_causal_conv, portable_gated_rms_norm

TOKENS = 6
half, double = torch.zeros(2).half(), torch.zeros(2).double()


def arguments(layer: Layer) -> dict[str, Any]:
    requests = {
        "states": numbers(5, *layer.state, seed=81, dtype=layer.state_dtype),
        "slots": int32([3, 1]),
        "query_start_loc": int32([0, 2, TOKENS]),
        "has_state": torch.tensor([True, False]),
    }
    return layer.tokens | layer.parameters | requests | layer.options


OF_REQUESTS = [
    ("slots", torch.zeros(2).long(), "slots must have dtype int32, but has int64."),
    ("slots", int32([3, 1])[None], "slots must have 1 dimension(s), but has 2."),
    ("slots", int32([3, 5]), "slots[1] is 5, but states has 5 blocks."),
    ("slots", int32([-1, 1]), "slots[0] is -1, but states has 5 blocks."),
    ("slots", int32([3, 3]), "slots must differ, but two are 3."),
    ("query_start_loc", int32([0, 6]), "query_start_loc must have one entry for each of the 3 slo"),
    ("query_start_loc", torch.zeros(3), "query_start_loc must have dtype int32, but has float32."),
    ("query_start_loc", int32([1, 2, 6]), "query_start_loc must begin with 0, but begins with 1."),
    (
        "query_start_loc",
        int32([0, 7, 6]),
        "query_start_loc must not fall, but query_start_loc[2] i",
    ),
    (
        "query_start_loc",
        int32([0, 2, 7]),
        "query_start_loc must not end behind the 6 tokens, but e",
    ),
    ("has_state", int32([1, 0]), "has_state must have dtype bool, but has int32."),
    (
        "has_state",
        torch.tensor([True]),
        "has_state must have one entry for each of the 2 slots, bu",
    ),
]
ERRORS: dict[str, list[tuple[str, Any, str]]] = {
    "convolution": [
        ("x", torch.zeros(6, 40).double(), "x must have dtype float32, bfloat16 or float16, but"),
        ("x", torch.zeros(40), "x must have 2 dimension(s), but has 1."),
        ("x", torch.zeros(40, 6).t(), "the last dimension of x must be contiguous."),
        ("weight", torch.zeros(40, 1, 4), "weight must have 2 dimension(s), but has 3."),
        ("weight", torch.zeros(4, 40).t(), "weight must be contiguous."),
        (
            "weight",
            torch.zeros(4, 4),
            "weight must have one entry for each of the 40 channels of x",
        ),
        ("weight", torch.zeros(40, 0), "weight must have at least one column."),
        ("bias", torch.zeros(4), "bias must have one entry for each of the 40 channels of x, but"),
        ("states", torch.zeros(5, 3, 40), "states must have dtype bfloat16, but has float32."),
        ("states", torch.zeros(5, 40).bfloat16(), "states must have 3 dimension(s), but has 2."),
        ("states", torch.zeros(5, 40, 3).bfloat16(), "states must have the shape [5, 3, 40]."),
        (
            "states",
            torch.zeros(5, 40, 3).bfloat16().transpose(1, 2),
            "the last dimension of states must be contiguous.",
        ),
    ],
    "mamba2": [
        ("x", torch.zeros(6, 4), "x must have 3 dimension(s), but has 2."),
        ("x", torch.zeros(6, 4, 16).int(), "x must have dtype float32, bfloat16 or float16, but"),
        ("dt", torch.zeros(6, 3), "dt must have the shape [6, 4]."),
        ("dt", torch.zeros(4, 6).t(), "the last dimension of dt must be contiguous."),
        ("b", torch.zeros(5, 2, 24), "b must have the shape [6, 2, 24]."),
        ("c", torch.zeros(6, 2, 20), "c must have the shape [6, 2, 24]."),
        ("a_log", double, "a_log must have dtype float32, bfloat16 or float16, but has float64."),
        ("a_log", half, "a_log must have one entry for each of the 4 heads of x, but has 2."),
        ("dt_bias", half, "dt_bias must have one entry for each of the 4 heads of x, but has 2."),
        ("d", half, "d must have one entry for each of the 4 heads of x, but has 2."),
        ("dt_limits", (2.0, 1.0), "dt_limits must not fall, but are 2 and 1."),
        (
            "states",
            torch.zeros(5, 4, 24, 16).half(),
            "states must have dtype float32, but has floa",
        ),
        ("states", torch.zeros(5, 4, 16, 24), "states must have the shape [5, 4, 24, 16]."),
    ],
    "delta rule": [
        ("q", torch.zeros(6, 4), "q must have 3 dimension(s), but has 2."),
        (
            "q",
            torch.zeros(6, 2, 24).double(),
            "q must have dtype float32, bfloat16 or float16, but",
        ),
        ("k", torch.zeros(6, 2, 20), "k must have the shape [6, 2, 24]."),
        ("v", torch.zeros(6, 16, 4).transpose(1, 2), "the last dimension of v must be contiguous."),
        ("v", torch.zeros(6, 3, 16), "the 3 heads of v must be a multiple of the 2 heads of q."),
        ("a", torch.zeros(6, 2), "a must have the shape [6, 4]."),
        ("b", torch.zeros(6, 2), "b must have the shape [6, 4]."),
        ("a_log", half, "a_log must have one entry for each of the 4 heads of v, but has 2."),
        ("dt_bias", half, "dt_bias must have one entry for each of the 4 heads of v, but has 2."),
        ("states", torch.zeros(5, 4, 24, 12), "states must have the shape [5, 4, 24, 16]."),
    ],
}
CASES = [(name, *one) for name, own in ERRORS.items() for one in [*own, *OF_REQUESTS]]


@pytest.mark.parametrize(("name", "argument", "value", "sentence"), CASES)
def test_errors(name: str, argument: str, value: Any, sentence: str) -> None:
    layer = LAYERS[name](TOKENS)
    given = arguments(layer)
    states = given["states"].clone()
    operator = layer.operator.__name__
    with pytest.raises(RuntimeError, match=f"^{operator}: {re.escape(sentence)}"):
        layer.operator(**given | {argument: value})
    assert_same(given["states"], states)
    layer.operator(**given)
    assert not torch.equal(given["states"], states)


def test_an_activation_that_there_is_not() -> None:
    given = arguments(LAYERS["convolution"](TOKENS))
    with pytest.raises(ValueError, match="activation must be 'silu' or None, but is 'gelu'"):
        portable_causal_conv(**given | {"activation": "gelu"})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"x": torch.zeros(8)}, "x must have 2 or 3 dimensions, but has 1."),
        ({"x": torch.zeros(2, 0)}, "x must have at least one column."),
        ({"x": torch.zeros(2, 8).double()}, "x must have dtype float32, bfloat16 or float16, but"),
        ({"x": torch.zeros(8, 2).t()}, "the last dimension of x must be contiguous."),
        ({"gate": torch.zeros(1, 8)}, "gate must have the shape of x."),
        ({"gate": torch.zeros(2, 8).int()}, "gate must have dtype float32, bfloat16 or float16, b"),
        ({"weight": half}, "weight must have one entry for each of the 8 columns of x, but has 2."),
        ({"epsilon": -1.0}, "epsilon must not be negative, but is -1."),
        ({"group_size": 3}, "the 8 columns of x must be a multiple of the 3 of a group."),
        ({"group_size": 0}, "the 8 columns of x must be a multiple of the 0 of a group."),
        ({"activation": "selu"}, "there is no function 'selu'."),
    ],
)
def test_errors_of_the_gated_norm(wrong: dict[str, Any], sentence: str) -> None:
    given = {"x": torch.zeros(2, 8), "gate": torch.zeros(2, 8), "weight": torch.ones(8)}
    with pytest.raises(RuntimeError, match=f"^portable_gated_rms_norm: {re.escape(sentence)}"):
        portable_gated_rms_norm(**given | wrong)


@pytest.mark.parametrize("name", LAYERS)
def test_gpus_are_refused(name: str) -> None:
    layer = LAYERS[name](TOKENS)
    given = arguments(layer)
    with FakeTensorMode():
        for argument, value in given.items():
            if isinstance(value, torch.Tensor):
                given[argument] = torch.empty(value.shape, dtype=value.dtype, device="cuda")
        sentence = (
            f"^{layer.operator.__name__}: layers with states have portable bits on CPUs alone, "
            "but this tensor is on cuda:0.$"
        )
        with pytest.raises(RuntimeError, match=sentence):
            layer.operator(**given)


def test_a_gated_norm_on_a_gpu_is_refused() -> None:
    with FakeTensorMode():
        x = torch.empty(2, 8, device="cuda")
        with pytest.raises(RuntimeError, match="layers with states have portable bits on"):
            portable_gated_rms_norm(x, x, None)


@pytest.mark.parametrize("name", LAYERS)
def test_tracing(name: str) -> None:
    """A compiled graph has the bits of the plain one, states included."""
    layer = LAYERS[name](TOKENS)
    given = arguments(layer)
    expected = layer.operator(**given)

    def double(states: torch.Tensor) -> torch.Tensor:
        return layer.operator(**given | {"states": states}) * 2

    states = arguments(layer)["states"]
    actual = torch.compile(double, fullgraph=True, backend="aot_eager")(states)
    assert_same(actual, expected * 2)
    assert_same(states, given["states"])
