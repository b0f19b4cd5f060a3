"""What is found out about a definition, and where an engine keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Agreement = Literal["bits", "rounding", "differs", "unknown"]

_KEY = "fork_definition"
"""Of ``VllmConfig.additional_config``."""

_MAX_DIFFERENCE = 1e-3
"""Of a module's outputs, in their root-mean-square: more than rounding makes in float32."""


@dataclass(frozen=True)
class Finding:
    """How vLLM's definition of a model compares with Transformers'.

    Attributes:
        agreement: "bits": all logits of the twin are equal; "rounding": they differ by no more
            than the order of additions explains; "differs": it is another function; "unknown":
            no twin could be computed.
        reason: why it is unknown; empty otherwise.
        module: the first whose output differs, by Transformers' name; empty if none was found.
        field: of the configuration that does it, as name=value; empty if none was found.
        agrees_up_to: tokens of the longest texts with which there is no difference; 0 if there are
            none.
        dtype: in which they differ, by torch's name; empty otherwise.
        difference: the largest one of logits.
        spread: standard deviation of Transformers' logits.
    """

    agreement: Agreement
    reason: str = ""
    module: str = ""
    field: str = ""
    agrees_up_to: int = 0
    dtype: str = ""
    difference: float = 0.0
    spread: float = 0.0

    def __str__(self) -> str:
        """As a sentence without its end."""
        if self.agreement == "bits":
            return "vLLM's definition and Transformers' have equal bits in a small random model"
        if self.agreement == "rounding":
            return "vLLM's definition computes the same function as Transformers', up to rounding"
        if self.agreement == "unknown":
            return f"vLLM's definition could not be compared with Transformers': {self.reason}"
        place = f", from {self.module} on" if self.module else ""
        cause = f", because of {self.field}" if self.field else ""
        return (
            f"vLLM computes this model otherwise than Transformers{place}{cause} (logits of a "
            f"small random model in {self.dtype} differ by up to {self.difference:.2g}; their "
            f"standard deviation is {self.spread:.2g})"
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def of_json(cls, plain: dict[str, Any]) -> Finding:
        """Return the finding that `as_json` made plain.

        Raises:
            TypeError: it is none.
        """
        return cls(**plain)


@dataclass(frozen=True)
class ModuleDifference:
    """How far apart the outputs of a module are that both sides have.

    Attributes:
        name: in Transformers' model.
        difference: root-mean-square of the difference over that of Transformers' output; infinite
            where one side is no number.
        is_equal: whether all bits are equal.
    """

    name: str
    difference: float
    is_equal: bool

    @property
    def is_other(self) -> bool:
        """Whether it is more than rounding makes in float32."""
        return self.difference > _MAX_DIFFERENCE


def note_definition(vllm_config: VllmConfig, finding: Finding) -> None:
    """Keep what was found in the configuration of an engine, in place, for its workers' report."""
    vllm_config.additional_config[_KEY] = finding.as_json()


def noted_definition(vllm_config: VllmConfig) -> Finding | None:
    """Return what `note_definition` has kept; None if nothing was to be compared."""
    found = vllm_config.additional_config.get(_KEY)
    return Finding.of_json(found) if found else None
