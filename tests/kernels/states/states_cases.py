"""Tokens of requests for the layers with states, and both sides of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from tests.kernels.logits.seen_token_cases import int32
from tests.kernels.portable_cases import as_floats, numbers, rounded
from tests.kernels.states import portable_states_reference as reference
from vllm.fork_kernels.portable.states import (
    portable_causal_conv,
    portable_gated_delta_rule,
    portable_mamba2_scan,
)

Operator = Callable[..., torch.Tensor]
Reference = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Layer:
    """A layer with states, and tokens for it.

    Attributes:
        operator: what is tested.
        reference: what it should be, of one request.
        tokens: the arguments with a row for each token, by name.
        parameters: the other tensors, and None.
        state: the shape of a request's.
        options: of both.
        dtype: of results.
        state_dtype: of states.
    """

    operator: Operator
    reference: Reference
    tokens: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor | None]
    state: tuple[int, ...]
    options: dict[str, Any]
    dtype: torch.dtype
    state_dtype: torch.dtype = torch.float32
    reference_options: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(next(iter(self.tokens.values())))

    def part(self, start: int, stop: int) -> Layer:
        """The layer with some of the tokens."""
        return self.rows(torch.arange(start, stop))

    def rows(self, indices: torch.Tensor) -> Layer:
        return replace(self, tokens={name: x[indices] for name, x in self.tokens.items()})

    def empty_states(self, blocks: int) -> torch.Tensor:
        """States that hold what nobody may read."""
        return torch.full((blocks, *self.state), torch.nan, dtype=self.state_dtype)

    def run(
        self,
        lengths: Sequence[int],
        states: torch.Tensor,
        slots: Sequence[int],
        has_state: Sequence[bool],
    ) -> torch.Tensor:
        """The operator on requests of some lengths, which are the tokens in their order."""
        starts = np.cumsum([0, *lengths]).tolist()
        requests = (states, int32(slots), int32(starts), torch.tensor(has_state, dtype=torch.bool))
        names = ("states", "slots", "query_start_loc", "has_state")
        arguments = self.tokens | self.parameters | dict(zip(names, requests, strict=True))
        return self.operator(**arguments, **self.options)

    def alone(self, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """One request of all tokens: its results, and the state behind them."""
        states = self.empty_states(1)
        if state is not None:
            states[0] = state
        result = self.run([self.count], states, [0], [state is not None])
        return result, states[0]

    def expected(self, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The same by the reference."""
        before = torch.zeros(self.state) if state is None else state
        given = {
            name: None if x is None else as_floats(x)
            for name, x in (self.tokens | self.parameters).items()
        }
        with np.errstate(all="ignore"):
            result, after = self.reference(
                **given, state=as_floats(before), **(self.reference_options or self.options)
            )
        return rounded(result, self.dtype), rounded(after, self.state_dtype)


def convolution(
    tokens: int,
    channels: int = 40,
    width: int = 4,
    *,
    dtype: torch.dtype = torch.bfloat16,
    has_bias: bool = True,
    activation: str | None = "silu",
) -> Layer:
    return Layer(
        portable_causal_conv,
        reference.causal_conv,
        {"x": numbers(tokens, channels, seed=21, dtype=dtype, scale=4.0)},
        {
            "weight": numbers(channels, width, seed=22, dtype=dtype),
            "bias": numbers(channels, seed=23) if has_bias else None,
        },
        (width - 1, channels),
        {"activation": activation},
        dtype,
        dtype,
        {"has_silu": activation is not None},
    )


def mamba2(
    tokens: int,
    heads: int = 4,
    columns: int = 16,
    groups: int = 2,
    rows: int = 24,
    *,
    dtype: torch.dtype = torch.bfloat16,
    has_d: bool = True,
    limits: tuple[float, float] = (0.0, float("inf")),
) -> Layer:
    return Layer(
        portable_mamba2_scan,
        reference.mamba2,
        {
            "x": numbers(tokens, heads, columns, seed=31, dtype=dtype, scale=4.0),
            "dt": numbers(tokens, heads, seed=32, dtype=dtype, scale=4.0),
            "b": numbers(tokens, groups, rows, seed=33, dtype=dtype, scale=2.0),
            "c": numbers(tokens, groups, rows, seed=34, dtype=dtype, scale=2.0),
        },
        {
            "a_log": numbers(heads, seed=35, scale=4.0),
            "d": numbers(heads, seed=36, dtype=dtype) if has_d else None,
            "dt_bias": numbers(heads, seed=37, scale=2.0),
        },
        (heads, rows, columns),
        {"dt_limits": limits},
        dtype,
        reference_options={"limits": limits},
    )


def delta_rule(
    tokens: int,
    heads: int = 4,
    columns: int = 16,
    key_heads: int = 2,
    rows: int = 24,
    *,
    dtype: torch.dtype = torch.bfloat16,
    scale: float | None = None,
    doubles_beta: bool = False,
) -> Layer:
    return Layer(
        portable_gated_delta_rule,
        reference.delta_rule,
        {
            "q": numbers(tokens, key_heads, rows, seed=41, dtype=dtype, scale=4.0),
            "k": numbers(tokens, key_heads, rows, seed=42, dtype=dtype, scale=4.0),
            "v": numbers(tokens, heads, columns, seed=43, dtype=dtype, scale=4.0),
            "a": numbers(tokens, heads, seed=44, dtype=dtype, scale=4.0),
            "b": numbers(tokens, heads, seed=45, dtype=dtype, scale=4.0),
        },
        {
            "a_log": numbers(heads, seed=46, scale=4.0),
            "dt_bias": numbers(heads, seed=47, dtype=dtype, scale=2.0),
        },
        (heads, rows, columns),
        {"scale": scale, "doubles_beta": doubles_beta},
        dtype,
    )


LAYERS: dict[str, Callable[..., Layer]] = {
    "convolution": convolution,
    "mamba2": mamba2,
    "delta rule": delta_rule,
}
