"""LongRoPE (Ding et al., 2024) at a length that tests can pass."""

from __future__ import annotations

from transformers import Phi3Config


def use_longrope(config: Phi3Config, trained: int) -> None:
    """Give a configuration LongRoPE for up to 256 tokens, after training with `trained`."""
    half = config.hidden_size // config.num_attention_heads // 2
    config.max_position_embeddings = 256
    config.original_max_position_embeddings = trained
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        "short_factor": [1.0 + i / half for i in range(half)],
        "long_factor": [4.0] * half,
        "original_max_position_embeddings": trained,
    }
