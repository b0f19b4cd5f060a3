"""What each side answers: Transformers, a model in `attach`, and engines in each mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.architectures.cases import MAX_LENGTH, NEW_TOKENS, Case
from vllm.deterministic import attach
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.startup.torch_switches import use_fresh_switches
from vllm.hf_layers.report.report import report_of_model
from vllm.parity.recording import logits_digests
from vllm.twin import engine_side
from vllm.twin.setting import EngineSetting

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

MODES = {
    "upstream": ForkFlags(),
    "hf_compat": ForkFlags(hf_compat=True),
    "exact": ForkFlags(hf_compat="exact"),
    "deterministic": ForkFlags(deterministic=True),
    "split_qkv": ForkFlags(split_qkv=True),
}
"""Flags of an engine, by the names of modes."""

PENALTY = 1.15
_MAX_SAID = 600


@dataclass(frozen=True)
class Side:
    """What a side has answered.

    Attributes:
        tokens: of each prompt.
        digests: of the logits of each of them; none if only tokens are compared.
        causes: sentences on what of an engine has other bits than Transformers.
        error: how it ended; empty if it did not.
    """

    tokens: list[list[int]] = field(default_factory=list)
    digests: list[list[str]] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    error: str = ""


def plain_side(case: Case, folder: Path, side: str, dtype: str) -> dict[str, Any]:
    """Return what a side answers, as plain values; an error that ends it is one of them.

    Args:
        case: the model.
        folder: of its checkpoint.
        side: "hf", "attached" or a mode of `MODES`.
        dtype: of the model, by torch's name.
    """
    known: dict[str, Callable[[], Side]] = {
        "hf": lambda: _of_transformers(_load(folder, dtype), case),
        "attached": lambda: _of_transformers(_attached(folder, dtype), case),
    }
    try:
        return asdict(known[side]() if side in known else _of_engine(folder, side, dtype, case))
    except Exception as error:  # of any class: it is the answer
        return asdict(Side(error=_said(error)))


def _said(error: Exception) -> str:
    """Return what an error says, in a line."""
    said = str(error)
    if isinstance(error, ValidationError):
        said = "; ".join(one["msg"].removeprefix("Value error, ") for one in error.errors())
    elif not isinstance(error, ValueError):
        said = f"{type(error).__name__}: {said}"
    return " ".join(said.split())[:_MAX_SAID]


def _load(folder: Path, dtype: str) -> PreTrainedModel:
    use_fresh_switches()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def _attached(folder: Path, dtype: str) -> PreTrainedModel:
    model = _load(folder, dtype)
    attach(model, max_length=MAX_LENGTH)
    return model


@torch.inference_mode()
def _of_transformers(model: PreTrainedModel, case: Case) -> Side:
    """Let `generate()` answer each prompt alone."""
    tokens, digests = [], []
    for prompt in case.prompts():
        output: Any = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            repetition_penalty=PENALTY,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens.append(output.sequences[0, len(prompt) :].tolist())
        digests.append(_digests(torch.cat(output.logits)))
    return Side(tokens, digests)


def _digests(logits: torch.Tensor) -> list[str]:
    return logits_digests(logits.float().numpy())


def _of_engine(folder: Path, mode: str, dtype: str, case: Case) -> Side:
    """Let an engine answer all prompts at once."""
    setting = EngineSetting(MODES[mode], dtype)
    with engine_side.engine(folder, setting, MAX_LENGTH, is_twin=False) as engine:
        tokens, logits = engine_side.answers(engine, case.prompts(), NEW_TOKENS, PENALTY)
        return Side(tokens, [_digests(steps) for steps in logits], _causes(engine))


def _causes(engine: LLMEngine) -> list[str]:
    """Return what the report of an engine in hf_compat says of parts with other bits."""
    runner = engine_side.runner_of(engine)
    if not ForkFlags.of(runner.vllm_config).hf_compat:
        return []
    report = report_of_model(runner.get_model(), runner.vllm_config)
    rows = [f"{row.kind}: {row.reason}" for row in report.rows if not row.has_hf_bits]
    definition = report.definition
    is_other = definition is not None and definition.agreement == "differs"
    return [*rows, *([str(definition)] if is_other else [])]
