"""One configuration, examined as an engine in hf_compat does, and proved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedConfig

from tools.definitions import proof, sight
from tools.definitions.bases import UNLIMITED, Base
from tools.definitions.reads import fields_read
from tools.definitions.ropes import trained_length
from tools.definitions.values import changes, is_neutral
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.finding import Finding
from vllm.twin import examination
from vllm.twin.setting import EngineSetting

Result = Literal["equal", "refused", "not compared", "no model"]

_RESULTS: dict[str, Result] = {
    "bits": "equal",
    "rounding": "equal",
    "differs": "refused",
    "unknown": "not compared",
}


@dataclass(frozen=True)
class Row:
    """What is found of a case.

    Attributes:
        type: of the model.
        field: that is changed; empty for the base.
        value: that it has.
        result: as the engine sees it; "no model" where Transformers itself takes no such value.
        cause: the module and the field that the engine names, or why nothing was compared.
        names_field: whether the field that it names is the one that was changed; None if it
            names none, or nothing was to be named.
        proof: "equal" or "other", of another model; or why there is none.
        apart: its logits' largest difference, in spreads of them; 0 without a proof.
        has_effect: of the value in Transformers' model; None if that is not known.
        is_shown: whether a twin shows that effect; None if the question is another.
        difference: of the twin's logits, in spreads of them.
        seconds: that it took.
    """

    type: str
    field: str
    value: str
    result: Result
    cause: str = ""
    names_field: bool | None = None
    proof: str = ""
    apart: float = 0.0
    has_effect: bool | None = None
    is_shown: bool | None = None
    difference: float = 0.0
    seconds: float = 0.0

    @property
    def is_silently_other(self) -> bool:
        """Whether an engine in hf_compat starts with another function, and does not say so."""
        return self.result == "equal" and self.proof == "other"


@dataclass(frozen=True)
class Plan:
    """What is to be tried of a type.

    Attributes:
        changes: names of fields and labels of their values.
        left_out: fields that are read, and for which no other value is known.
    """

    changes: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]


def plan_of(base: Base) -> Plan:
    """Return what is to be tried of a type.

    Raises:
        Exception: Transformers makes no small model of it.
    """
    config = base.make({})
    read = fields_read(base.config_class, proof.small_arguments(base, {}))
    names = sorted(name for name in read & {*config.to_dict()} if not is_neutral(name))
    found = {name: changes(name, config) for name in names}
    return Plan(
        tuple((one.field, one.label) for values in found.values() for one in values),
        tuple(name for name, values in found.items() if not values),
    )


def examine_case(base: Base, field: str, label: str, with_causes: bool) -> Row:
    """Examine a configuration, and prove the result.

    Args:
        base: of the type.
        field: that is changed; "" for none.
        label: of its value.
        with_causes: whether the cause of a difference is looked for.
    """
    try:
        config = base.make(_fields(base.make({}), field, label))
        small = _small(base, field, label)
        effect = proof.has_effect(_small(base, "", ""), small) if field else None
    except Exception as error:  # of any class, of a model that Transformers does not run
        return Row(base.model_type, field, label, "no model", first_line(error))
    finding = _examined(config, trained_length(config) or base.longest, with_causes)
    names = finding.field.split("=")[0] == field if finding.field else None
    cause = " because of ".join(one for one in (finding.module, finding.field) if one)
    proved, apart = _proof(small)
    is_shown = None
    if effect and finding.agreement in ("bits", "rounding"):
        is_shown = sight.shows(base.make({}), config, base.longest)
    return Row(
        type=base.model_type,
        field=field,
        value=label,
        result=_RESULTS[finding.agreement],
        cause=(finding.reason or cause).replace("\n", " ")[:400],
        names_field=names,
        proof=proved,
        apart=apart,
        has_effect=effect,
        is_shown=is_shown,
        difference=finding.difference / finding.spread if finding.spread else 0.0,
    )


def _fields(config: PreTrainedConfig, field: str, label: str) -> dict[str, Any]:
    if not field:
        return {}
    return next(one.fields for one in changes(field, config) if one.label == label)


def _examined(config: PreTrainedConfig, longest: int, with_causes: bool) -> Finding:
    """Return the finding of an engine in bfloat16."""
    setting = EngineSetting(ForkFlags(hf_compat=True), "bfloat16")
    return examination.examine(config, setting, min(longest, UNLIMITED), with_causes)


def _small(base: Base, field: str, label: str) -> PreTrainedConfig:
    """Return the configuration of the model that proves a case."""
    small = base.config_class(**proof.small_arguments(base, {}))
    changed = _fields(small, field, label)
    return base.config_class(**proof.small_arguments(base, changed)) if field else small


def _proof(small: PreTrainedConfig) -> tuple[str, float]:
    """Return "equal", "other", or why there is no proof; and the difference."""
    try:
        apart = proof.compare(small)
    except Exception as error:  # of either side, of any class
        return first_line(error), 0.0
    return "equal" if apart.agrees else "other", min(apart.difference, 1e9)


def first_line(error: Exception) -> str:
    """Return an error in a line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:300]
