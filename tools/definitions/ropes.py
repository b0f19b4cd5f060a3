"""Other kinds of rotary positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

Fields = dict[str, Any]


def other_ropes(name: str, config: PreTrainedConfig) -> Iterator[tuple[str, Fields]]:
    """Yield each kind of rope by its name, as a field; of layers with several kinds, that of full
    attention is another one.

    Args:
        name: of the field.
        config: whose sizes they are for.
    """
    own: Any = getattr(config, name)
    if not isinstance(own, Mapping):
        return
    keys = [key for key, value in own.items() if isinstance(value, Mapping)]
    key = "full_attention" if "full_attention" in keys else next(iter(keys), None)
    rope = own[key] if key else own
    for label, other in _kinds(dict(rope), config):
        yield label, {name: {**own, key: other} if key else other}


def _kinds(rope: Fields, config: PreTrainedConfig) -> Iterator[tuple[str, Fields]]:
    positions = int(getattr(config, "max_position_embeddings", None) or 2048)
    kept = {one: rope[one] for one in ("rope_theta", "partial_rotary_factor") if one in rope}
    trained = {"original_max_position_embeddings": max(64, positions // 8)}
    kinds: dict[str, Fields] = {
        "default": {},
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 4.0},
        "yarn": {"factor": 8.0, **trained},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **trained},
        "longrope": {**_long_factors(rope, config), **trained},
    }
    for kind, fields in kinds.items():
        if kind != rope.get("rope_type", "default"):
            yield kind, {"rope_type": kind, **kept, **fields}
    if "rope_theta" in rope:
        yield "theta x 0.1", {**rope, "rope_theta": rope["rope_theta"] * 0.1}
    part = rope.get("partial_rotary_factor", 1.0)
    yield "partial x 0.5", {**rope, "partial_rotary_factor": part * 0.5}
    if rope.get("rope_type") == "yarn":
        yield "yarn factor x 2", {**rope, "factor": rope["factor"] * 2.0}
        yield "yarn truncate", {**rope, "truncate": not rope.get("truncate", True)}


def _long_factors(rope: Fields, config: PreTrainedConfig) -> Fields:
    """Return factors that grow from dimension to dimension."""
    fields = config.to_dict()  # Gemma 4's object refuses to say a size that layers may differ in
    width = fields.get("head_dim") or config.hidden_size // config.num_attention_heads
    count = int(width * rope.get("partial_rotary_factor", 1.0)) // 2
    return {
        "short_factor": [1.0 + i / count for i in range(count)],
        "long_factor": [1.0 + 4.0 * i / count for i in range(count)],
    }


def trained_length(config: PreTrainedConfig) -> int | None:
    """Return up to which length an engine in hf_compat takes texts of a model with LongRoPE."""
    rope: Any = getattr(config, "rope_parameters", None) or {}
    if not isinstance(rope, Mapping) or rope.get("rope_type") != "longrope":
        return None
    own: int | None = getattr(config, "original_max_position_embeddings", None)
    return own or rope["original_max_position_embeddings"]
