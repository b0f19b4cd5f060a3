"""The layers with states."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from ...refusal import attach_refusal as refusal
from ...states.recurrences import convolve, delta_rule, scan
from ..form import Form
from .tokens import Tokens

__all__ = ["MIXERS", "ConvolutionForm", "MixerForm"]


class ConvolutionForm(Form):
    """A convolution, which its mixer computes.

    Attributes:
        weight: [channels, 1, width].
        bias: [channels], or None.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None


class MixerForm(Form):
    """A layer with states.

    Attributes:
        MARKS: attributes by which its classes are known.
        CONVOLUTION: the attribute that holds its convolution.
        NORM: the attribute that holds its gated norm; "" if it has none.
        OUTPUT: the attribute that holds its last layer.
        TOGETHER: names of layers that share their input, and are one in the engine.
        layer_idx: of the cache.
    """

    MARKS: ClassVar[tuple[str, ...]] = ()
    CONVOLUTION: ClassVar[str] = "conv1d"
    NORM: ClassVar[str] = "norm"
    OUTPUT: ClassVar[str] = "out_proj"
    TOGETHER: ClassVar[tuple[tuple[str, ...], ...]] = ()
    layer_idx: int
    training: bool

    def forward(
        self,
        hidden_states: torch.Tensor,
        cache_params: Any = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> torch.Tensor:
        """Return [sequences, columns, hidden_size], zero for padding.

        Args:
            hidden_states: likewise.
            cache_params: Transformers' cache.
            attention_mask: [sequences, columns], 0 for padding; None if there is none.
            past_key_values: what some models call the cache.
            others: what other implementations need.

        Raises:
            ValueError: the layer is in training mode, or see `Tokens.states`.
        """
        if self.training:
            raise refusal(type(self).__name__, "it is in training mode: call eval()")
        tokens = Tokens.of(hidden_states, attention_mask)
        cache = past_key_values if cache_params is None else cache_params
        return tokens.scattered(self.mix(tokens.gathered(hidden_states), tokens, cache))

    def mix(self, x: torch.Tensor, tokens: Tokens, cache: Any) -> torch.Tensor:
        """Return [num_tokens, hidden_size] of x, likewise."""
        raise NotImplementedError

    def _empty_inputs(self, x: torch.Tensor) -> torch.Tensor:
        weight = getattr(self, self.CONVOLUTION).weight
        return x.new_empty(weight.shape[2] - 1, weight.shape[0])

    def _convolved(
        self, x: torch.Tensor, inputs: torch.Tensor, tokens: Tokens, activation: str | None = "silu"
    ) -> torch.Tensor:
        conv = getattr(self, self.CONVOLUTION)
        return convolve(conv, x, inputs, tokens.requests, activation)


class Mamba2Form(MixerForm):
    """``torch_forward`` of the mixers of Mamba 2."""

    MARKS: ClassVar[tuple[str, ...]] = (
        "A_log",
        "D",
        "dt_bias",
        "conv1d",
        "in_proj",
        "out_proj",
        "norm",
        "time_step_limit",
    )

    def mix(self: Any, x: torch.Tensor, tokens: Tokens, cache: Any) -> torch.Tensor:
        """As `MixerForm.mix`."""
        projected = self._projected(x)
        sizes = [self.intermediate_size, self.conv_dim, self.num_heads]
        gate, mixed, dt = projected.split(sizes, dim=-1)
        state = x.new_empty(self.num_heads, self.ssm_state_size, self.head_dim, dtype=torch.float32)
        inputs, states = tokens.states(cache, self.layer_idx, self._empty_inputs(x), state)
        mixed = self._convolved(mixed, inputs, tokens)
        least, most = map(float, self.time_step_limit)
        scanned = scan(self, self.A_log, mixed, dt, states, tokens.requests, (least, most))
        return self.out_proj(self.norm(scanned, gate))

    def _projected(self: Any, x: torch.Tensor) -> torch.Tensor:
        """Return what goes into the recurrence, with Falcon-H1's multipliers."""
        if (factor := getattr(self, "ssm_in_multiplier", None)) is not None:
            x = x * factor
        projected = self.in_proj(x)
        factors = getattr(self, "mup_vector", None)
        return projected if factors is None else projected * factors.flatten()


class DeltaNetForm(MixerForm):
    """A gated delta net."""

    MARKS: ClassVar[tuple[str, ...]] = ("A_log", "dt_bias", "conv1d", "head_k_dim", "head_v_dim")

    def attend(
        self: Any, mixed: torch.Tensor, a: torch.Tensor, b: torch.Tensor, tokens: Tokens, cache: Any
    ) -> torch.Tensor:
        """Return what the delta rule makes of the tokens, [num_tokens, value heads, head_v_dim].

        Args:
            mixed: [num_tokens, conv_dim], queries, keys and values before the convolution.
            a: [num_tokens, value heads], what the decay is made of.
            b: likewise, what beta is made of.
            tokens: of the forward.
            cache: Transformers'.
        """
        state = mixed.new_empty(
            self.num_v_heads, self.head_k_dim, self.head_v_dim, dtype=torch.float32
        )
        inputs, states = tokens.states(cache, self.layer_idx, self._empty_inputs(mixed), state)
        mixed = self._convolved(mixed, inputs, tokens)
        doubles_beta = getattr(self, "allow_neg_eigval", False)
        return delta_rule(self, mixed, a, b, states, tokens.requests, doubles_beta=doubles_beta)


class Qwen3NextForm(DeltaNetForm):
    """``Qwen3NextGatedDeltaNet``, whose projections are by the heads of keys."""

    MARKS: ClassVar[tuple[str, ...]] = (
        *DeltaNetForm.MARKS,
        "in_proj_qkvz",
        "in_proj_ba",
        "norm",
        "out_proj",
    )

    def mix(self: Any, x: torch.Tensor, tokens: Tokens, cache: Any) -> torch.Tensor:
        """As `MixerForm.mix`."""
        qkvz, ba = self.in_proj_qkvz(x).unsqueeze(0), self.in_proj_ba(x).unsqueeze(0)
        ordered = self.fix_query_key_value_ordering(qkvz, ba)
        q, k, v, gate, b, a = (one.squeeze(0) for one in ordered)
        mixed = torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], dim=-1)
        attended = self.attend(mixed, a, b, tokens, cache)
        return self.out_proj(self.norm(attended, gate).flatten(1))


class Qwen35Form(DeltaNetForm):
    """``Qwen3_5GatedDeltaNet``."""

    MARKS: ClassVar[tuple[str, ...]] = (
        *DeltaNetForm.MARKS,
        "in_proj_qkv",
        "in_proj_z",
        "in_proj_b",
        "in_proj_a",
    )
    TOGETHER = (("in_proj_qkv", "in_proj_z"), ("in_proj_b", "in_proj_a"))

    def mix(self: Any, x: torch.Tensor, tokens: Tokens, cache: Any) -> torch.Tensor:
        """As `MixerForm.mix`."""
        a, b = self.in_proj_a(x), self.in_proj_b(x)
        attended = self.attend(self.in_proj_qkv(x), a, b, tokens, cache)
        gate = self.in_proj_z(x).unflatten(-1, attended.shape[1:])
        return self.out_proj(self.norm(attended, gate).flatten(1))


class OlmoHybridForm(DeltaNetForm):
    """``OlmoHybridGatedDeltaNet``."""

    MARKS: ClassVar[tuple[str, ...]] = (
        *DeltaNetForm.MARKS,
        "q_proj",
        "k_proj",
        "v_proj",
        "g_proj",
        "o_norm",
        "o_proj",
    )
    NORM = "o_norm"
    OUTPUT = "o_proj"
    TOGETHER = (("q_proj", "k_proj", "v_proj", "g_proj"),)

    def mix(self: Any, x: torch.Tensor, tokens: Tokens, cache: Any) -> torch.Tensor:
        """As `MixerForm.mix`."""
        mixed = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)
        attended = self.attend(mixed, self.a_proj(x), self.b_proj(x), tokens, cache)
        gate = self.g_proj(x).unflatten(-1, attended.shape[1:])
        return self.o_proj(self.o_norm(attended, gate).flatten(1))


class ShortConvolutionForm(MixerForm):
    """The short convolution of LFM2, between two gates."""

    MARKS: ClassVar[tuple[str, ...]] = ("conv", "in_proj", "out_proj", "conv_kernel_size")
    CONVOLUTION = "conv"
    NORM = ""

    def mix(self: Any, x: torch.Tensor, tokens: Tokens, cache: Any) -> torch.Tensor:
        """As `MixerForm.mix`."""
        first, second, x = self.in_proj(x).chunk(3, dim=-1)
        (inputs,) = tokens.states(cache, self.layer_idx, self._empty_inputs(x))
        return self.out_proj(second * self._convolved(first * x, inputs, tokens, activation=None))


MIXERS = (Mamba2Form, Qwen3NextForm, Qwen35Form, OlmoHybridForm, ShortConvolutionForm)
