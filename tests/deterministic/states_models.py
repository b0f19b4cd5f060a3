"""Small models whose layers keep states, of each type that deterministic mode takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.definitions.bases import base_of
from tools.definitions.proof import random_model, small_arguments
from vllm.twin.weights import write_checkpoint

_SMALL_STATES = {"mamba_d_state": 16}
_SMALL_HEADS = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}

_LAYERS = ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"]

CHANGES: dict[str, dict[str, Any]] = {
    "mamba2": {},
    "granitemoehybrid": _SMALL_STATES,
    "falcon_h1": _SMALL_STATES,
    "falcon_h1, gated norm": _SMALL_STATES
    | {"mamba_rms_norm": True, "mamba_norm_before_gate": True, "mamba_n_groups": 2},
    "zamba2": _SMALL_STATES,
    "nemotron_h": {
        "layers_block_type": _LAYERS,  # without experts
        "mamba_num_heads": 4,
        "n_groups": 2,
        "ssm_state_size": 16,
    },
    "qwen3_next": _SMALL_HEADS,
    "qwen3_5_text": _SMALL_HEADS,
    "olmo_hybrid": _SMALL_HEADS,
    "lfm2": {},
}
"""By names that begin with the type: fields of the configuration.

Small states make small blocks: vLLM gives keys and values blocks as large as a state.
"""


def config_of(name: str) -> Any:
    """Return the configuration of a model of `CHANGES`."""
    base = base_of(name.partition(",")[0])
    return base.config_class(**small_arguments(base, CHANGES[name]))


def write_model(name: str, folder: Path) -> None:
    """Write a model of `CHANGES`, with random weights."""
    write_checkpoint(random_model(config_of(name)), folder, None)
