"""Compares vLLM's definition of a model with Transformers', and looks for the cause."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch
from transformers import PreTrainedConfig

from vllm.hf_layers.definition.finding import Agreement, Finding, ModuleDifference
from vllm.twin.causes import guilty_field
from vllm.twin.modules import compare_modules, first_module
from vllm.twin.setting import EngineSetting
from vllm.twin.sizes import has_experts, has_states, limits_of_texts
from vllm.twin.twin import NoTwin, Outcome, Stops, Twin, compute

_SEEDS = range(4)
"""A difference that other weights do not have is a tie of experts, or of the roundings to 16 bits,
and no fault; where there are neither, the first weights decide.
"""


def examine(
    config: PreTrainedConfig, setting: EngineSetting, max_model_len: int, with_causes: bool = True
) -> Finding:
    """Compare both sides of a twin.

    Args:
        config: of the model, as Transformers reads it.
        setting: of the engine.
        max_model_len: tokens of the longest text that the engine takes.
        with_causes: whether the cause of a difference is looked for.
    """
    try:
        twin = Twin.of(config, max_model_len, setting.remote_code)
        agreement, compared, outcome = _compare(twin, setting)
    except (NoTwin, Stops) as error:
        return Finding("unknown", str(error))
    except Exception as error:  # of Transformers, which writes the checkpoint
        return Finding("unknown", f"no twin could be written: {type(error).__name__}: {error}")
    difference = min(outcome.difference, torch.finfo(torch.float32).max)
    found = Finding(agreement, difference=difference, spread=outcome.spread)
    if agreement == "differs":
        found = replace(found, dtype=compared.dtype)
    if found.agreement == "differs" and with_causes:
        with suppress(Exception):  # whatever the search for the cause meets, they differ
            found = _with_field(found, config, twin, compared, max_model_len)
        with suppress(Exception):
            found = replace(found, module=first_module(twin, compared))
    return found


def _compare(twin: Twin, setting: EngineSetting) -> tuple[Agreement, EngineSetting, Outcome]:
    """Compare the engine's own layers, and then, if bits are not equal, what its definition
    computes in the dtype that tells most.

    Returns:
        How they compare, the setting that shows it, and its outcome.

    Raises:
        Stops: one side ends in an error; not if another setting shows that they differ.
    """
    own: list[Outcome] = []
    stops: Stops | None = None
    if setting.expects_bits:
        try:
            own = _outcomes(twin, setting)
        except Stops as error:
            stops = error
    if own and own[0].is_equal:
        return "bits", setting, own[0]
    if own and own[-1].agrees and _has_own_states(twin, setting):
        return "rounding", setting, own[-1]
    of_values, outcome = _compare_values(twin, setting)
    if not outcome.agrees:
        return "differs", of_values, outcome
    if stops is not None:
        raise stops
    if own and not own[-1].agrees:
        return "differs", setting, own[-1]
    return "rounding", of_values, outcome


def _has_own_states(twin: Twin, setting: EngineSetting) -> bool:
    """Whether the engine's layers with states are other ones than vLLM's, which in float32 round
    decays, leave limits out, or do not run at all.
    """
    return setting.flags.is_portable and has_states(twin.config.to_dict())


def _with_field(
    found: Finding, config: PreTrainedConfig, twin: Twin, setting: EngineSetting, max_model_len: int
) -> Finding:
    cause = _cause_of_length(config, setting, max_model_len)
    if cause is None:
        cause = Finding("differs", field=guilty_field(twin, setting, config))
    return replace(found, field=cause.field, agrees_up_to=cause.agrees_up_to)


def examine_modules(
    config: PreTrainedConfig, setting: EngineSetting, max_model_len: int
) -> list[ModuleDifference]:
    """Compare the modules of both sides, one by one; none where that is not possible.

    Args:
        config: as for `examine`.
        setting: likewise.
        max_model_len: likewise.
    """
    with suppress(Exception):
        twin = Twin.of(config, max_model_len, setting.remote_code)
        return compare_modules(twin, setting.of_values())
    return []


def _compare_values(twin: Twin, setting: EngineSetting) -> tuple[EngineSetting, Outcome]:
    """Compare in the dtype that tells most; in the engine's where the definition knows no other.

    Returns:
        The setting that was compared, and the outcome.
    """
    best = setting.of_values()
    try:
        return best, _outcomes(twin, best)[-1]
    except Exception:
        if setting.dtype == best.dtype:
            raise
        own = setting.of_values(setting.dtype)
        return own, _outcomes(twin, own)[-1]


def _outcomes(twin: Twin, setting: EngineSetting) -> list[Outcome]:
    """Return what is computed with one weights after the other, until both sides agree."""
    outcomes: list[Outcome] = []
    may_tie = setting.dtype != "float32" or has_experts(twin.config.to_dict())
    for seed in _SEEDS if may_tie else _SEEDS[:1]:
        with twin.on_disk(seed) as folder:
            outcomes.append(compute(twin, folder, setting, is_precise=True))
        if outcomes[-1].agrees:
            break
    return outcomes


def _cause_of_length(
    config: PreTrainedConfig, setting: EngineSetting, max_model_len: int
) -> Finding | None:
    """Return the field whose limit texts must not pass, and that limit; None if shorter texts
    differ, too.
    """
    limits = limits_of_texts(config.to_dict())
    for name, limit in sorted(limits.items(), key=lambda one: -one[1]):
        if limit < max_model_len and _outcomes(Twin.of(config, limit), setting)[-1].agrees:
            return Finding("differs", field=f"{name}={limit}", agrees_up_to=limit)
    return None
