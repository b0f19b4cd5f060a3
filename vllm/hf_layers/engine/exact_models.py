"""Which models ``hf_compat="exact"`` takes: those whose cache keeps keys and values of tokens,
states of one size, or both.

It is here, below the mode itself, for those who refuse a model and would advise it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from vllm.fork.flags.fork_flags import ForkFlags

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedConfig, PreTrainedModel

    from vllm.config import VllmConfig

CACHE_NAMES = ("past_key_values", "cache_params")
"""What the argument of a model is called that takes its cache, and the field of its output."""

_NO_CACHE = "keeps nothing between tokens"
_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    DynamicIndexedLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
_PLACEHOLDERS = ("moe", "mlp")  # types of layers that have a place in the cache, and nothing there
RULES = "hf_compat=\"rules\", which keeps generate()'s rules on vLLM's model"
"""What takes every model that vLLM runs, as advice."""

_INSTEAD = f"use hf_compat=True, which compares vLLM's model with Transformers' first, or {RULES}"


def why_not_exact(config: PreTrainedConfig) -> str | None:
    """Return what exact mode has no blocks for, as "it ..."; None where nothing is known.

    Args:
        config: of a model. `refusal_of` is for what only shows when the model runs.
    """
    parameters = _parameters_of(config)
    if parameters and not any(name in parameters for name in CACHE_NAMES):
        return _NO_CACHE
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        return why_no_blocks(DynamicCache(config=config.get_text_config(decoder=True)))
    return None


def cache_name(model: PreTrainedModel) -> str:
    """Return what a model calls the argument that is its cache."""
    parameters = inspect.signature(model.forward).parameters
    return next((one for one in CACHE_NAMES if one in parameters), CACHE_NAMES[0])


def is_forgotten_by_guidance(config: PreTrainedConfig) -> bool:
    """Whether ``UnbatchedClassifierFreeGuidanceLogitsProcessor`` computes each token of a model
    without those before it, since it keeps ``past_key_values`` alone.
    """
    parameters = _parameters_of(config)
    return bool(parameters) and CACHE_NAMES[0] not in parameters


def _parameters_of(config: PreTrainedConfig) -> Collection[str]:
    """Return the names of a model's arguments; none if Transformers does not know the model."""
    try:
        model = AutoModelForCausalLM._model_mapping[type(config)]
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()
    return inspect.signature(model.forward).parameters


def why_no_blocks(cache: Cache | None) -> str | None:
    """Return what of a cache has no place in blocks, as "it ..."; None if all has."""
    if cache is None:
        return _NO_CACHE
    others = [type(layer) for layer in cache.layers if type(layer) not in _LAYERS]
    return f"has a {others[0].__name__} in its cache" if others else None


def num_state_blocks(config: PreTrainedConfig) -> int:
    """Return how many blocks of the KV cache the states of a request take in exact mode.

    Args:
        config: of a model that exact mode takes.
    """
    config = config.get_text_config(decoder=True)
    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, TypeError, ValueError):  # of no model of Transformers
        return 0
    types = getattr(config, "layer_types", None) or [""] * len(layers)
    used = [own for own, kind in zip(layers, types, strict=False) if kind not in _PLACEHOLDERS]
    with_states = sum(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in used)
    with_keys = sum(isinstance(layer, CacheLayerMixin) for layer in used)
    return state_blocks(with_states, with_keys)


def state_blocks(num_with_states: int, num_with_keys: int) -> int:
    """Return how many blocks hold the states of a request, so that one of them takes about as much
    memory as a layer's states for each layer that has keys.

    Args:
        num_with_states: layers of the cache that have states.
        num_with_keys: layers that have keys and values.
    """
    return -(-num_with_states // (num_with_keys or num_with_states or 1))


def refusal_of(name: str, reason: str) -> ValueError:
    """Return what exact mode raises for a model.

    Args:
        name: of the model's class.
        reason: of `why_not_exact` or `why_no_blocks`.
    """
    return ValueError(f'hf_compat="exact" does not support {name}, which {reason}: {_INSTEAD}.')


def check_exact(config: PreTrainedConfig) -> None:
    """Check that exact mode takes a model, before it is loaded.

    Raises:
        ValueError: it does not.
    """
    if reason := why_not_exact(config):
        raise refusal_of((config.architectures or [config.model_type])[0], reason)


def could_be_exact(vllm_config: VllmConfig) -> bool:
    """Whether exact mode takes an engine's model, and goes with its settings."""
    return (
        not _in_its_way(vllm_config) and why_not_exact(vllm_config.model_config.hf_config) is None
    )


def exact_remedy(vllm_config: VllmConfig) -> str | None:
    """Return exact mode as advice, with the settings of an engine that it does not go with.

    Returns:
        None if exact mode does not take the model.
    """
    if why_not_exact(vllm_config.model_config.hf_config) is not None:
        return None
    settings = " and ".join(_in_its_way(vllm_config))
    return f'hf_compat="exact" without {settings}' if settings else 'hf_compat="exact"'


def _in_its_way(vllm_config: VllmConfig) -> list[str]:
    """Return an engine's settings with which exact mode does not go, as arguments."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    settings = {
        "deterministic=True": ForkFlags.of(vllm_config).is_portable,
        f"tensor_parallel_size={parallel.tensor_parallel_size}": parallel.tensor_parallel_size > 1,
        f"pipeline_parallel_size={parallel.pipeline_parallel_size}": (
            parallel.pipeline_parallel_size > 1
        ),
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size > 1,
        "speculative_config": vllm_config.speculative_config is not None,
        "kv_transfer_config": vllm_config.kv_transfer_config is not None,
        "kv_cache_dtype": vllm_config.cache_config.cache_dtype != "auto",
        "enable_prompt_embeds=True": model.enable_prompt_embeds,
    }
    return [name for name, is_given in settings.items() if is_given]
