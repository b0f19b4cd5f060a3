"""Finds the field of a configuration with which two definitions of a model part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from transformers import PreTrainedConfig

from vllm.twin.setting import EngineSetting
from vllm.twin.twin import Twin, compute

_LIMIT_S = 60.0
"""Of the search, at the end of which the module alone is named."""

_MAX_SHOWN = 80
"""Characters of a value."""

_NEUTRAL = (
    *("architectures", "model_type", "transformers_version", "auto_map", "id2label", "label2id"),
    *("initializer_range", "use_cache", "torch_dtype", "dtype", "_name_or_path", "vocab_size"),
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "is_decoder", "return_dict"),
)


def guilty_field(twin: Twin, setting: EngineSetting, config: PreTrainedConfig) -> str:
    """Return the field, as name=value, without which both sides agree; "" if none is found.

    Args:
        twin: with which they do not.
        setting: of the engine.
        config: of the model, for the value.
    """
    end = time.monotonic() + _LIMIT_S
    for name, value in _other_values(twin.config):
        if time.monotonic() > end:
            break
        with suppress(Exception):  # a value that the class does not take, or an engine's own error
            other = twin.with_field(name, value)
            with other.on_disk() as folder:
                if compute(other, folder, setting, is_precise=True).agrees:
                    return _shown(name, getattr(config, name, value))
    return ""


def _shown(name: str, value: Any) -> str:
    """Return a field and its value, if that is short enough for a sentence."""
    text = repr(value)
    return f"{name}={text}" if len(text) <= _MAX_SHOWN else name


def _other_values(config: PreTrainedConfig) -> Iterator[tuple[str, Any]]:
    """Yield fields with another value: their default first, or what turns them off."""
    fields, defaults = config.to_dict(), type(config)().to_dict()
    changed = [
        name
        for name, value in fields.items()
        if name not in _NEUTRAL and name in defaults and defaults[name] != value
    ]
    for name in changed:
        if _is_like(fields[name], defaults[name]):
            yield name, defaults[name]
    for name, value in fields.items():
        if isinstance(value, bool) and name not in _NEUTRAL:
            yield name, not value
    if fields.get("sliding_window") is not None:
        yield "sliding_window", None
    if isinstance(fields.get("layer_types"), list):
        yield "layer_types", ["full_attention"] * len(fields["layer_types"])


def _is_like(value: Any, default: Any) -> bool:
    """Whether a default can stand in a twin: sizes and lists of layers have their own."""
    if isinstance(value, list) or isinstance(default, list):
        return False
    is_size = isinstance(value, int) and not isinstance(value, bool)
    return not (is_size and isinstance(default, int) and not isinstance(default, bool))
