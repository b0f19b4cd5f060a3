"""The configuration that each type of model is tried with."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

UNLIMITED = 10**9
"""Tokens of the longest text, for an engine that passes every window and every trained length."""

_BACKEND = "vllm.model_executor.models.transformers"


@dataclass(frozen=True)
class Base:
    """What a type is tried with.

    Attributes:
        model_type: Transformers' name of it.
        source: the checkpoint on the Hugging Face Hub whose numbers these are; empty for the
            class's defaults.
        config: arguments of the class.
        none: those of them that are None.
        longest: tokens of the longest text that an engine takes.
        proof: arguments of the small model that proves a result.
        variants: by their names, other arguments that models of this type on the Hub have.
    """

    model_type: str
    source: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    none: tuple[str, ...] = ()
    longest: int = UNLIMITED
    proof: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def config_class(self) -> type[PreTrainedConfig]:
        """Transformers' class of the configuration."""
        found: type[PreTrainedConfig] = CONFIG_MAPPING[self.model_type]
        return found

    def arguments(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of the class, with others; a copy, since classes write into them."""
        return deepcopy({**self.config, **dict.fromkeys(self.none), **other})

    def make(self, other: Mapping[str, Any]) -> PreTrainedConfig:
        """Return the configuration with other fields.

        Raises:
            Exception: of any class that Transformers checks a configuration with.
        """
        return self.config_class(**self.arguments(other))


_GIVEN: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("bases.toml").read_text()
)


def base_of(name: str) -> Base:
    """Return what a type is tried with.

    Raises:
        ValueError: Transformers has no causal language model of this type.
    """
    if name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(f"Transformers has no causal language model of type {name!r}")
    given = dict(_GIVEN.get(name, {}))
    variants = {label: _with_none(fields) for label, fields in given.pop("variants", {}).items()}
    return Base(name, none=tuple(given.pop("none", ())), variants=variants, **given)


def _with_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with those that "none" names."""
    given = dict(fields)
    return {**dict.fromkeys(given.pop("none", ())), **given}


def architecture_of(name: str) -> str:
    """Return the name of the class that Transformers gives a type."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]
    return found if isinstance(found, str) else found[0]


def definition_of(name: str) -> str:
    """Return who defines a type in vLLM: "native", "backend" for Transformers' own class within
    vLLM, or "none".
    """
    from vllm.model_executor.models.registry import ModelRegistry

    found: Any = ModelRegistry.models.get(architecture_of(name))
    if found is None:
        return "none"
    return "backend" if found.module_name.startswith(_BACKEND) else "native"


def native_types() -> list[str]:
    """Return all types that both sides define, without those of several media, those that are
    here first, since they are well known.
    """
    return [name for name in known_types() if definition_of(name) == "native"]


def known_types() -> list[str]:
    """Likewise, with those that vLLM runs by Transformers' class within its own layers."""
    types = [
        name
        for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if definition_of(name) != "none" and not CONFIG_MAPPING[name].sub_configs
    ]
    known = [name for name in _GIVEN if name in types]
    return known + [name for name in types if name not in known]
