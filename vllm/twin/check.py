"""What an engine in hf_compat asks of its model's definition, before it starts."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, PreTrainedConfig

from vllm.fork.flags.fork_flags import IS_TWIN, ForkFlags
from vllm.hf_layers.definition.attn_implementation import attn_implementation
from vllm.hf_layers.definition.finding import Finding, note_definition
from vllm.hf_layers.engine.exact_models import RULES, could_be_exact
from vllm.hf_layers.engine.unlike_models import check_long_texts
from vllm.logger import init_logger
from vllm.twin import kept
from vllm.twin.process import Task, examine_elsewhere
from vllm.twin.setting import EngineSetting

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

logger = init_logger(__name__)

_STOPS = re.compile(r"vLLM does not run its twin: (?!ValueError|ValidationError)(\w+Error.*)")
"""A finding's reason that says nothing of what to do: others are refusals, which an engine has."""


class IncompleteRope(ValueError):
    """Overrides of a configuration that end every model; the sentence says what is missing."""


def check_definition(vllm_config: VllmConfig) -> None:
    """Compare vLLM's definition of the model with Transformers', and keep what was found in the
    configuration, in place; nothing where neither hf_compat nor deterministic mode promises it.

    Raises:
        ValueError: it is another function, or ends in an error because of a field; or, with
            ``hf_compat="strict"``, its bits are others, or it could not be compared.
    """
    flags = ForkFlags.of(vllm_config)
    if not _is_promised(flags) or IS_TWIN in vllm_config.additional_config:
        return
    finding = definition_of(vllm_config.model_config, flags)
    note_definition(vllm_config, finding)
    _refuse(finding, vllm_config)
    _refuse_what_stops(finding, vllm_config)
    level = logging.WARNING if finding.agreement == "unknown" else logging.INFO
    logger.log(level, "%s: %s.%s", flags.as_given, finding, _advice(finding, vllm_config))


def _advice(finding: Finding, vllm_config: VllmConfig) -> str:
    """Return what to do if the engine ends as its twin did, for which its sizes may be to blame."""
    if _STOPS.match(finding.reason) is None:
        return ""
    exact = ': use hf_compat="exact"' if could_be_exact(vllm_config) else ""
    return f" The engine may end in the same error{exact}."


def _is_promised(flags: ForkFlags) -> bool:
    """Whether an engine is to compute, by vLLM's definition, what Transformers' model does."""
    return flags.has_hf_definition and flags.hf_compat != "exact"


def definition_of(model_config: ModelConfig, flags: ForkFlags) -> Finding:
    """Return how vLLM's definition of a model compares with Transformers'.

    Args:
        model_config: of an engine.
        flags: of the engine.

    Raises:
        ValueError: see `check_long_texts`; or overrides leave a rope without its theta.
    """
    try:
        config = _config_of(model_config)
    except IncompleteRope:
        raise
    except (OSError, ValueError, KeyError) as error:
        return Finding("unknown", f"Transformers cannot read its configuration: {error}")
    longest = model_config.max_model_len
    check_long_texts(config.get_text_config(), longest, flags.as_given)
    return find_or_examine(config, _setting_of(model_config, flags), longest)


def _setting_of(model_config: ModelConfig, flags: ForkFlags) -> EngineSetting:
    hf_compat = True if flags.hf_compat == "strict" else flags.hf_compat
    return EngineSetting(
        replace(flags, hf_compat=hf_compat, receipts=False),
        str(model_config.dtype).removeprefix("torch."),
        str(model_config.model_impl),
        attn_implementation(model_config),
        model_config.trust_remote_code,
    )


def find_or_examine(config: PreTrainedConfig, setting: EngineSetting, longest: int) -> Finding:
    """Return a finding of before; or make it, and keep what was found out.

    Args:
        config: of the model, as Transformers reads it.
        setting: of the engine.
        longest: tokens of the longest text that the engine takes.
    """
    name = kept.digest(config, setting, longest)
    if (finding := kept.find(name)) is None:
        logger.info(
            "Comparing vLLM's definition of the model with Transformers': this takes seconds, and "
            "up to two minutes if they differ."
        )
        finding = examine_elsewhere(Task(config, setting, longest)).finding
        if finding.agreement != "unknown":  # what was missing may be there the next time
            kept.keep(name, finding, f"{config.name_or_path} ({config.model_type})")
    return finding


def _config_of(model_config: ModelConfig) -> PreTrainedConfig:
    """Return the configuration as Transformers reads it, with what the engine overrides."""
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


def _refuse(finding: Finding, vllm_config: VllmConfig) -> None:
    flags, architecture = ForkFlags.of(vllm_config), vllm_config.model_config.architecture
    given = flags.as_given
    remedy = RULES if flags.hf_compat else f"{RULES}, beside deterministic=True"
    if could_be_exact(vllm_config):
        remedy = f'hf_compat="exact", which runs Transformers\' own model, or {remedy}'
    if finding.agrees_up_to:
        remedy = f"max_model_len={finding.agrees_up_to}, or {remedy}"
    if finding.agreement == "differs":
        raise ValueError(f"{given}: {finding}: use {remedy}.")
    if flags.hf_compat == "strict" and finding.agreement != "bits":
        raise ValueError(f"{given} refuses {architecture}, since {finding}: use {remedy}.")


def _refuse_what_stops(finding: Finding, vllm_config: VllmConfig) -> None:
    """Refuse a field with which a twin ends in an error and without which it runs, since the
    engine would end there, too: in another process, and without a word of the field.
    """
    if (error := _STOPS.match(finding.reason)) is None:
        return
    model_config, flags = vllm_config.model_config, ForkFlags.of(vllm_config)
    config, setting = _config_of(model_config), _setting_of(model_config, flags)
    for name, default in _changed_fields(config):
        other = deepcopy(config)
        setattr(other, name, default)
        if find_or_examine(other, setting, model_config.max_model_len).agreement != "unknown":
            remedy = "use a model without it"
            if could_be_exact(vllm_config):
                remedy += ', or try hf_compat="exact"'
            raise ValueError(
                f"{flags.as_given} does not go with {name}={getattr(config, name)!r} of "
                f"{model_config.architecture}, with which a small random model of it ends in "
                f"{error[1].strip().rstrip(':.')}: {remedy}."
            )


def _changed_fields(config: PreTrainedConfig) -> Iterator[tuple[str, bool | str | None]]:
    """Yield the fields that choose among ways to compute, if they are not the default, with it."""
    defaults = type(config)().to_dict()
    for name, value in config.to_dict().items():
        default = defaults.get(name, value)
        is_choice = isinstance(value, bool | str) and isinstance(default, bool | str | None)
        if is_choice and value != default and name != "transformers_version":
            yield name, default
