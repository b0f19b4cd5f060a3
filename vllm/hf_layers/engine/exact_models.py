"""Which models ``hf_compat="exact"`` takes: those that keep keys and values of tokens, and no more.

It is here, below the mode itself, for those who refuse a model and would advise it.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING

from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from vllm.fork.flags.fork_flags import ForkFlags

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedConfig

    from vllm.config import VllmConfig

_NO_KEYS = "keeps no keys and values"
RULES = "hf_compat=\"rules\", which keeps generate()'s rules on vLLM's model"
"""What takes every model that vLLM runs, as advice."""

_INSTEAD = f"use hf_compat=True, which compares vLLM's model with Transformers' first, or {RULES}"


def why_not_exact(config: PreTrainedConfig) -> str | None:
    """Return what exact mode has no pages for, as "it ..."; None where nothing is known.

    Args:
        config: of a model. `refusal_of` is for what only shows when the model runs.
    """
    with suppress(AttributeError, KeyError, TypeError, ValueError):  # of no model of Transformers
        model = AutoModelForCausalLM._model_mapping[type(config)]
        if "past_key_values" not in inspect.signature(model.forward).parameters:
            return _NO_KEYS
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        return why_no_pages(DynamicCache(config=config.get_text_config(decoder=True)))
    return None


def why_no_pages(cache: Cache | None) -> str | None:
    """Return what of a cache is no keys and values, as "it ..."; None if all is."""
    if cache is None:
        return _NO_KEYS
    kinds = [type(layer) for layer in cache.layers]
    others = [kind for kind in kinds if kind not in (DynamicLayer, DynamicSlidingWindowLayer)]
    return f"has a {others[0].__name__} in its cache" if others else None


def refusal_of(name: str, reason: str) -> ValueError:
    """Return what exact mode raises for a model.

    Args:
        name: of the model's class.
        reason: of `why_not_exact` or `why_no_pages`.
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
    model = vllm_config.model_config
    excluded = (
        ForkFlags.of(vllm_config).is_portable,
        vllm_config.parallel_config.world_size > 1,
        vllm_config.speculative_config is not None,
        vllm_config.kv_transfer_config is not None,
        vllm_config.cache_config.cache_dtype != "auto",
        model.enable_prompt_embeds,
    )
    return not any(excluded) and why_not_exact(model.hf_config) is None
