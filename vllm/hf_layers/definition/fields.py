"""Fields of a configuration at which vLLM's class of a model stops, and which the flags honour.

The class is shown another value. `asked_for` tells what the model's configuration says, for the
hooks that then make its layers so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.of_type import configure_type
from vllm.hf_layers.models import facts_of, values_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.config import VllmConfig

_KEPT = "fork_fields_asked_for"
"""Attribute of a configuration: the fields that were changed, as they were."""


def change_fields(vllm_config: VllmConfig) -> None:
    """Give the fields at which vLLM's class stops a value that it takes, in place."""
    flags = ForkFlags.of(vllm_config)
    if not flags.has_hf_definition or flags.hf_compat == "exact":
        return
    config = vllm_config.model_config.hf_text_config
    facts = facts_of(config)
    for name, value in values_of(facts.implied, config).items():
        if getattr(config, name, None) is None:
            setattr(config, name, value)
    taken = values_of(facts.taken, config)
    asked = {name: getattr(config, name) for name in taken if hasattr(config, name)}
    if changed := {name: one for name, one in asked.items() if one != taken[name]}:
        setattr(config, _KEPT, {**getattr(config, _KEPT, {}), **changed})
        for name in changed:
            setattr(config, name, taken[name])
    configure_type(vllm_config)


def asked_for(config: PreTrainedConfig, name: str) -> Any:
    """Return a field as the model's configuration has it; None if it has none."""
    return getattr(config, _KEPT, {}).get(name, getattr(config, name, None))
