"""Another proof than a twin's: a model of its own sizes, in an engine beside `generate()`.

Nothing of what makes a twin small is used here: sizes are given directly, and windows, lengths
and texts are others. What both have in common is the way to run either side.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from tools.definitions.bases import Base
from tools.definitions.ropes import trained_length
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.twin import engine_side, transformers_side
from vllm.twin.setting import EngineSetting
from vllm.twin.texts import NEW_TOKENS
from vllm.twin.weights import randomise, write_checkpoint

_SIZES: dict[tuple[str, ...], int] = {
    ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"): 128,
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers"): 4,
    ("num_attention_heads", "n_head", "n_heads", "num_heads"): 4,
    ("head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"): 32,
    ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "intermediate_size_mlp"): 192,
    ("q_lora_rank", "moe_intermediate_size", "expert_ffn_hidden_size"): 64,
    ("shared_expert_intermediate_size", "shared_intermediate_size"): 96,
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"): 16,
    ("vocab_size", "vocab_size_per_layer_input"): 300,
    ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"): 512,
    ("sliding_window", "sliding_window_size"): 24,
    ("attention_chunk_size",): 128,  # vLLM asks that blocks of its cache divide it
    ("floor_scale",): 16,  # so that texts pass it
    ("time_step_rank", "mamba_dt_rank"): 8,
    ("mamba_d_ssm",): 256,
    ("mamba_n_heads",): 4,
    ("mamba_d_head",): 64,
    ("mamba_d_state", "state_size"): 16,
    ("linear_num_key_heads",): 2,
    ("linear_num_value_heads",): 4,
    ("linear_key_head_dim", "linear_value_head_dim"): 64,
}
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
_DYNAMIC_LENGTH = 64
"""Tokens that a rope of the kind "dynamic" was trained with: fewer than texts have."""

_LENGTHS = (7, 41, 150)
_LONGEST = 160
_SEED = 11
_LARGE, _STEP, _GAIN = ("gate_", "up_", "fc", "w1", "w3"), 8, 6.0
"""Which weights have large rows, before an activation; one in how many, and how much larger."""

_TOLERANCE = 5e-5
"""Of the logits' spread: what float32 rounds is mostly a tenth of it, and another function more."""

_ROUNDING = 8.0
"""Where it is more: how many times the difference between Transformers' float32 and float64."""


def small_arguments(base: Base, other: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a small model's configuration.

    Args:
        base: of its type.
        other: fields that are changed; they come before any size.
    """
    switches = {name: value for name, value in other.items() if isinstance(value, bool)}
    full = base.make(switches).to_dict()  # some sizes, of windows, are there only with a switch
    small: dict[str, Any] = {
        name: size
        for names, size in _SIZES.items()
        for name in names
        if isinstance(full.get(name), int) and full[name]
    }
    small |= _key_heads(full, small)
    small |= _tokens(full, small["vocab_size"])
    arguments = base.arguments({**_short_rope(base), **small, **base.proof, **other})
    rope = arguments.get("rope_parameters") or {}
    if rope.get("rope_type") == "dynamic":
        arguments["max_position_embeddings"] = _DYNAMIC_LENGTH
    return arguments


def _key_heads(full: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, int]:
    """Return as many heads of keys as in the large model: one, all, or every second one."""
    heads = full.get("num_attention_heads")
    return {
        name: 1 if full[name] == 1 else 4 if full[name] == heads else 2
        for name in _KEY_HEADS
        if isinstance(full.get(name), int) and "num_attention_heads" in small
    }


def _tokens(full: Mapping[str, Any], vocab_size: int) -> dict[str, int]:
    """Return ids of special tokens that the small vocabulary has."""
    names = [name for name in full if name.endswith("token_id")]
    given = {name: full[name] for name in names if full[name] is not None}
    return {
        name: vocab_size - 1 - i
        for i, (name, token) in enumerate(given.items())
        if isinstance(token, list) or token >= vocab_size
    }


def _short_rope(base: Base) -> dict[str, Any]:
    """Return the ropes of a type with a trained length that texts pass."""
    rope = base.config.get("rope_parameters")
    if not rope or "original_max_position_embeddings" not in rope:
        return {}
    return {"rope_parameters": {**rope, "original_max_position_embeddings": 64}}


@dataclass(frozen=True)
class Apart:
    """How far apart both sides are.

    Attributes:
        difference: the largest one of logits in float32, in spreads of them; infinite if one side
            has numbers where the other has none.
        rounding: likewise of Transformers' float32 and float64; 0 if that need not be known.
    """

    difference: float
    rounding: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the difference is one of rounding."""
        return self.difference <= max(_TOLERANCE, _ROUNDING * self.rounding)


def compare(config: PreTrainedConfig) -> Apart:
    """Compute a model on both sides."""
    vocabulary = config.get_text_config().vocab_size
    setting = EngineSetting(ForkFlags(hf_compat=True), "float32")
    draw = random.Random(_SEED)
    longest = min(trained_length(config) or _LONGEST, _LONGEST)
    lengths = {min(length, longest - NEW_TOKENS) for length in _LENGTHS}
    texts = [draw.choices(range(4, vocabulary - 8), k=length) for length in sorted(lengths)]
    with tempfile.TemporaryDirectory(prefix="definition-") as name:
        write_checkpoint(random_model(config), Path(name), None)
        with engine_side.engine(Path(name), setting, longest) as engine:
            answers, found = engine_side.answers(engine, texts)

        def wanted(dtype: torch.dtype) -> list[torch.Tensor]:
            model = transformers_side.load(Path(name), dtype, setting, longest)
            return transformers_side.logits(model, texts, answers)

        own = wanted(torch.float32)
        apart = Apart(_difference(found, own))
        if apart.agrees:
            return apart
        return Apart(apart.difference, _difference(own, wanted(torch.float64)))


def _difference(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    one, other = torch.cat(some).double(), torch.cat(others).double()
    return float(((one - other).abs().max() / other.std()).nan_to_num(nan=torch.inf))


def random_model(config: PreTrainedConfig) -> Any:
    """Return a model with random weights, of which some are large: limits are passed, too."""
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    torch.manual_seed(_SEED)  # vectors are near what a class begins with, which may be drawn
    model = model_class._from_config(config, dtype=torch.float32).eval()
    randomise(model, _SEED)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and any(part in name for part in _LARGE):
            weight.data[..., ::_STEP, :] *= _GAIN
    return model


def has_effect(config: PreTrainedConfig, other: PreTrainedConfig) -> bool:
    """Whether two configurations are different functions, or have other weights, in Transformers;
    if not, there is nothing that the other side could have missed.
    """
    one, two = random_model(config), random_model(other)
    shapes = [{name: value.shape for name, value in m.state_dict().items()} for m in (one, two)]
    if shapes[0] != shapes[1]:
        return True
    text = torch.tensor([random.Random(_SEED).choices(range(4, 250), k=_LENGTHS[-1])])
    with torch.inference_mode():
        return not torch.equal(one(text).logits, two(text).logits)
