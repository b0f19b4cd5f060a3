"""What an engine in hf_compat asks of its model's definition, before it starts."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING

from transformers import PreTrainedConfig

from vllm.fork.flags.fork_flags import IS_TWIN, ForkFlags
from vllm.hf_layers.definition.configuration import config_of
from vllm.hf_layers.definition.finding import Finding, note_definition
from vllm.hf_layers.engine.exact_models import RULES, exact_remedy
from vllm.logger import init_logger
from vllm.twin.definition import definition_of, find_or_examine, setting_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)

_STOPS = re.compile(r"vLLM does not run its twin: (?!ValueError|ValidationError)(\w+Error.*)")
"""A finding's reason that says nothing of what to do: others are refusals, which an engine has."""


def check_definition(vllm_config: VllmConfig) -> None:
    """Compare vLLM's definition of the model with Transformers', and keep what was found in the
    configuration, in place; nothing where neither hf_compat nor deterministic mode promises it.

    Raises:
        ValueError: it is another function, or ends in an error because of a field; or, with
            ``hf_compat="strict"``, its bits are others, or it could not be compared.
    """
    flags = ForkFlags.of(vllm_config)
    is_promised = flags.has_hf_definition and flags.hf_compat != "exact"
    if not is_promised or IS_TWIN in vllm_config.additional_config:
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
    remedy = exact_remedy(vllm_config)
    return f" The engine may end in the same error{f': use {remedy}' if remedy else ''}."


def _refuse(finding: Finding, vllm_config: VllmConfig) -> None:
    flags, architecture = ForkFlags.of(vllm_config), vllm_config.model_config.architecture
    given = flags.as_given
    remedy = RULES if flags.hf_compat else f"{RULES}, beside deterministic=True"
    if (exact := exact_remedy(vllm_config)) is not None:
        remedy = f"{exact}, which runs Transformers' own model, or {remedy}"
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
    config, setting = config_of(model_config), setting_of(model_config, flags)
    for name, default in _changed_fields(config):
        other = deepcopy(config)
        setattr(other, name, default)
        if find_or_examine(other, setting, model_config.max_model_len).agreement != "unknown":
            remedy = "use a model without it"
            if (exact := exact_remedy(vllm_config)) is not None:
                remedy += f", or try {exact}"
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
