"""The mixer of Mamba 2; see ``docs/numerics/states.md``.

Source: ``torch_forward`` of the mixers in Transformers, whose formula each type of models has.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from vllm.deterministic.states.cache import StateForm, last_inputs, metadata_of, use_states
from vllm.deterministic.states.decays import load_decays
from vllm.deterministic.states.gated_norm import GatedNorm, use_gated_norm
from vllm.deterministic.states.recurrences import convolve, scan
from vllm.hf_layers.models import MixerFormula, facts_of
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2


def objection(layer: MambaMixer2) -> str | None:
    """Return why a mixer cannot be computed; None if it can."""
    if facts_of(layer.model_config.hf_text_config).mixer is None:
        return "the mixer of this type of models is not specified"
    if layer.conv_kernel_size < 2:
        return "a convolution over one token is not specified"
    if layer.activation not in ("silu", "swish"):
        return f"the activation {layer.activation} of its convolution is not specified"
    return None


def use_mixer(layer: MambaMixer2) -> None:
    """Let a mixer, which is not loaded yet, compute with portable bits."""
    config = layer.model_config.hf_text_config
    formula = facts_of(config).mixer
    assert formula is not None
    load_decays(layer, "A", layer.model_config.dtype)
    columns = layer.intermediate_size
    use_gated_norm(
        layer.norm,
        GatedNorm(
            layer.norm.variance_epsilon if formula.epsilon is None else formula.epsilon,
            columns // layer.n_groups if formula.has_groups else columns,
            bool(formula.norm_first and getattr(config, formula.norm_first)),
        ),
    )
    use_states(
        layer,
        [
            last_inputs(layer.conv_kernel_size, layer.conv_dim, layer.model_config.dtype),
            StateForm((layer.num_heads, layer.ssm_state_size, layer.head_dim), torch.float32),
        ],
    )
    layer.forward = partial(_forward, layer, _limits(config, formula))


def _limits(config: Any, formula: MixerFormula) -> tuple[float, float]:
    if formula.least:
        return float(getattr(config, formula.least)), math.inf
    least, most = getattr(config, formula.limits)
    return float(least), float(most)


def _forward(
    layer: MambaMixer2,
    limits: tuple[float, float],
    hidden_states: torch.Tensor,
    mup_vector: torch.Tensor | None = None,
) -> torch.Tensor:
    """As ``MambaMixer2.forward``: hidden_states and the result are [num_tokens, hidden_size]."""
    projected, _ = layer.in_proj(hidden_states)
    if mup_vector is not None:
        projected = projected * mup_vector
    sizes = [layer.intermediate_size, layer.conv_dim, layer.num_heads]
    gate, mixed, dt = projected.split(sizes, dim=-1)
    metadata = metadata_of(layer)
    if metadata is None:
        scanned = torch.zeros_like(gate)
    else:
        inputs, states = layer.kv_cache
        mixed = convolve(layer.conv1d, mixed, inputs, metadata.requests)
        scanned = scan(layer, layer.A, mixed, dt, states, metadata.requests, limits)
    output, _ = layer.out_proj(layer.norm(scanned, gate))
    return output
