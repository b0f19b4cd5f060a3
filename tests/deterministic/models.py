"""Models of Transformers for the tests of deterministic mode, and what is asked of them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engines import MODEL
from tools.make_random_model import randomize, soften_embeddings
from tools.model_shapes import find_shape, make_config

VOCABULARY = 500
"""Of random models, instead of up to 262,144 tokens."""

SHAPES = (
    "llama",
    "mistral-7b",
    "qwen2-0.5b",
    "qwen3-0.6b",
    "gemma2-2b",
    "gemma3-1b",
    "phi3-mini",
    "gpt-neox",
    "opt-125m",
    "gpt2",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
)
"""Each with something of its own: biases, windows, caps, norms of heads, experts, ..."""


def random_model(shape: str, dtype: torch.dtype = torch.bfloat16, **values: Any) -> PreTrainedModel:
    """Return two layers of a real architecture with random weights, narrow.

    Args:
        shape: of ``tools/model_shapes.toml``.
        dtype: of the weights.
        values: of the configuration, instead of the shape's.
    """
    config = make_config(find_shape(shape), num_layers=2, narrow=True)
    config.update({"vocab_size": VOCABULARY, "pad_token_id": None, **values})
    return random_weights(config, dtype)


def random_weights(config: Any, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Return a model of a configuration, always with the same weights."""
    with torch.random.fork_rng(devices=[]):  # the initialisation to be overwritten draws too
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    randomize(model, 0, 1.0)
    soften_embeddings(model)
    return model.eval()


def bundled_model(dtype: torch.dtype) -> PreTrainedModel:
    """Return the small Llama that was trained on Python's standard library."""
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).eval()


def token_ids(tokens: int, seed: int = 0, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Return any tokens, [1, tokens], always the same."""
    steps = torch.arange(tokens) + 1000 * seed
    return ((steps * steps * 7 + steps * 13) % (vocabulary - 3) + 3)[None]


def in_chunks(model: PreTrainedModel, ids: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """Return the logits of [1, tokens] that are computed up to each end in turn, with a cache."""
    logits, cache, start = [], None, 0
    for end in ends:
        positions = torch.arange(start, end)[None]
        done = model(
            ids[:, start:end], position_ids=positions, past_key_values=cache, use_cache=True
        )
        logits.append(done.logits)
        cache, start = done.past_key_values, end
    return torch.cat(logits, dim=1)


def padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a model's arguments for rows [1, tokens] with padding on their left."""
    width = max(row.shape[1] for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, width - row.shape[1] :] = row
        mask[i, width - row.shape[1] :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
