"""Says which layers of an engine in hf_compat compute with Hugging Face's bits, and which do not.

The table goes to the log when an engine starts, to Python as ``LLM.parity_report()``, and decides
with ``hf_compat="strict"`` whether the engine starts at all. What a model's own code computes
between its layers is shown by a twin (`vllm.twin`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.finding import Finding, noted_definition
from vllm.hf_layers.engine.exact_models import exact_remedy
from vllm.hf_layers.strict import settings_of
from vllm.logger import init_logger

if TYPE_CHECKING:
    from torch import nn

    from vllm import LLM
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.worker_base import WorkerBase

logger = init_logger(__name__)

Fields = tuple[str, int, bool, str]
"""A row as it travels between processes."""

_NUM_NAMED = 3


@dataclass(frozen=True)
class ParityRow:
    """Layers of one kind that compute in the same way.

    Attributes:
        kind: name of their class.
        count: how many there are.
        has_hf_bits: whether they compute what Transformers does, to the last bit.
        reason: how they compute, or why it is vLLM's kernel.
    """

    kind: str
    count: int
    has_hf_bits: bool
    reason: str


@runtime_checkable
class HasParityRow(Protocol):
    """A model that is judged as a whole, by itself."""

    parity_row: ParityRow


@dataclass(frozen=True)
class ParityReport:
    """All layers of an engine, and its settings that change Hugging Face's bits.

    Attributes:
        rows: those with vLLM's bits last.
        settings: a sentence about each, without its end.
        definition: how vLLM's definition of the model compares with Transformers'; None where the
            model is Transformers' own, or nothing is promised of it.
    """

    rows: tuple[ParityRow, ...]
    settings: tuple[str, ...] = ()
    definition: Finding | None = None

    @property
    def has_hf_bits(self) -> bool:
        """Whether all layers, settings and the definition keep Hugging Face's bits."""
        is_equal = self.definition is None or self.definition.agreement == "bits"
        return is_equal and not self.settings and all(row.has_hf_bits for row in self.rows)

    def __str__(self) -> str:
        table = [("layers", "count", "bits", "how")]
        for row in self.rows:
            whose = "Hugging Face" if row.has_hf_bits else "vLLM"
            table.append((row.kind, str(row.count), whose, row.reason))
        kind, count, bits = (max(len(line[i]) for line in table) for i in range(3))
        lines = [
            f"{one[0]:<{kind}}  {one[1]:>{count}}  {one[2]:<{bits}}  {one[3]}" for one in table
        ]
        about = [f"setting: {one}" for one in self.settings]
        if self.definition is not None:
            about.append(f"definition: {self.definition}")
        return "\n".join([*lines, *about])


def report_of_model(model: nn.Module, vllm_config: VllmConfig) -> ParityReport:
    """Return the report on a model of an engine in hf_compat, once its layers are prepared.

    Args:
        model: on this rank.
        vllm_config: of the engine.
    """
    from vllm.hf_layers.report.layers import parity_of_layers  # workers alone have it

    if isinstance(model, HasParityRow):
        return ParityReport((model.parity_row,))
    counts = Counter(parity_of_layers(model, vllm_config))
    return ParityReport(_rows(counts), settings_of(vllm_config), noted_definition(vllm_config))


def _rows(counts: Counter[tuple[str, bool, str]]) -> tuple[ParityRow, ...]:
    """Return rows in order, of how many layers there are of each kind and way to compute."""
    rows = [ParityRow(kind, n, has_hf, why) for (kind, has_hf, why), n in counts.items()]
    return tuple(sorted(rows, key=lambda row: (not row.has_hf_bits, row.kind, row.reason)))


def log_report(runner: GPUModelRunner) -> None:
    """Write the report into the log of an engine in hf_compat that is about to start.

    Args:
        runner: of a worker whose model is loaded; one rank of each pipeline stage speaks.
    """
    vllm_config = runner.vllm_config
    if ForkFlags.of(vllm_config).hf_compat and _is_first_of_its_stage():
        logger.info("hf_compat: what computes with whose bits\n%s", _report_of(runner))


def _report_of(runner: GPUModelRunner) -> ParityReport:
    return report_of_model(runner.get_model(), runner.vllm_config)


def _is_first_of_its_stage() -> bool:
    """Whether this worker speaks for its pipeline stage: the others have parts of its layers."""
    from vllm.distributed import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank() == 0


def check_layers(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Refuse, with ``hf_compat="strict"``, a model of which a layer keeps vLLM's bits.

    Args:
        model: prepared, and not loaded yet.
        vllm_config: of the engine; its settings are refused before, by `note_settings`.

    Raises:
        ValueError: names the first kinds of such layers, and what to do.
    """
    if ForkFlags.of(vllm_config).hf_compat != "strict":
        return
    rows = [row for row in report_of_model(model, vllm_config).rows if not row.has_hf_bits]
    if not rows:
        return
    named = ", ".join(f"{row.count} {row.kind} ({row.reason})" for row in rows[:_NUM_NAMED])
    remedy = exact_remedy(vllm_config)
    exact = f"{remedy}, which runs Transformers' own model, or " if remedy else ""
    more = f" and {len(rows) - _NUM_NAMED} more kinds" if len(rows) > _NUM_NAMED else ""
    raise ValueError(
        f'hf_compat="strict" refuses {type(model).__name__}, of which these layers keep vLLM\'s '
        f"bits: {named}{more}: use {exact}hf_compat=True, which lets them."
    )


def worker_rows(worker: WorkerBase) -> list[Fields]:
    """Return the rows of a worker as plain values; none from one that has parts of another's.

    It is a method of vLLM's workers, for `parity_report` to call.
    """
    if not _is_first_of_its_stage():
        return []
    runner: Any = worker.model_runner
    return [astuple(row) for row in _report_of(runner).rows]


def parity_report(llm: LLM) -> ParityReport:
    """Return which layers of the engine compute with Hugging Face's bits, and why others do not.

    It is ``LLM.parity_report()``; its ``str`` is the table that the log has.

    Raises:
        ValueError: the engine is not in hf_compat.
    """
    vllm_config = llm.llm_engine.vllm_config
    if not ForkFlags.of(vllm_config).hf_compat:
        raise ValueError(
            "parity_report() is about hf_compat, without which all layers are vLLM's: pass "
            "LLM(..., hf_compat=True)."
        )
    counts: Counter[tuple[str, bool, str]] = Counter()
    for stage in llm.collective_rpc("parity_rows"):
        for kind, count, has_hf_bits, reason in stage:
            counts[kind, has_hf_bits, reason] += count
    return ParityReport(_rows(counts), settings_of(vllm_config), noted_definition(vllm_config))
