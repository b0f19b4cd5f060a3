"""The configuration of an engine's model as Transformers has it, with what the engine overrides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

if TYPE_CHECKING:
    from vllm.config import ModelConfig


class IncompleteRope(ValueError):
    """Overrides of a configuration that end every model; the sentence says what is missing."""


@contextmanager
def own_classes() -> Iterator[None]:
    """Let Transformers read configurations with its own classes, as in a process without vLLM.

    vLLM registers others for types that Transformers knows, too.
    """
    registered: dict[str, Any] = CONFIG_MAPPING._extra_content
    known = registered.keys() & CONFIG_MAPPING._mapping.keys()
    replaced = {name: registered.pop(name) for name in known}
    try:
        yield
    finally:
        registered.update(replaced)


def config_of(model_config: ModelConfig) -> PreTrainedConfig:
    """Return the configuration as Transformers reads it, with ``hf_overrides`` but the
    implementation of attention, which is an argument of ``from_pretrained``.

    Raises:
        IncompleteRope: they leave a rope without its theta.
        OSError: there is none; and what else Transformers raises for one that it cannot read.
    """
    with own_classes():
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            model_config.hf_config_path or model_config.model,
            revision=model_config.revision,
            code_revision=model_config.code_revision,
            trust_remote_code=model_config.trust_remote_code,
            token=model_config.hf_token,
        )
    overrides = model_config.hf_overrides
    if callable(overrides):
        changed: PreTrainedConfig = overrides(config)
        return changed
    _check_theta(config.get_text_config(), overrides)
    config.update({name: one for name, one in overrides.items() if name != "attn_implementation"})
    return config


def _check_theta(config: PreTrainedConfig, overrides: dict[str, Any]) -> None:
    """Refuse overrides that leave a rope without its theta: neither side makes a model then."""
    own = getattr(config, "rope_parameters", None) or {}
    kinds = [kind for kind, rope in own.items() if isinstance(rope, dict)]
    for name in ("rope_scaling", "rope_parameters"):
        rope = overrides.get(name)
        if isinstance(rope, dict) and (missing := [kind for kind in kinds if kind not in rope]):
            raise IncompleteRope(
                f"hf_overrides replaces {name} as a whole, and leaves {' and '.join(missing)} "
                f"without a rope: add the model's own, {own}."
            )
        if isinstance(rope, dict) and "rope_theta" in own and rope.get("rope_theta") is None:
            raise IncompleteRope(
                f"hf_overrides replaces {name} as a whole, and leaves the rope without a theta: "
                f'add the model\'s own, "rope_theta": {own["rope_theta"]}.'
            )
