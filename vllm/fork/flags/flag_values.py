"""The fork's engine flags, what values they take, and the environment variables of their names.

A variable is the default of an argument that nobody has given, for programs that start engines
with arguments of their own: ``VLLM_HF_COMPAT=1`` is ``hf_compat=True`` there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from vllm import envs
from vllm.logger import init_logger

logger = init_logger(__name__)

FlagValue = bool | str


@dataclass(frozen=True)
class FlagSpec:
    """One flag as the command line shows it.

    Attributes:
        modes: string values accepted besides True and False.
        help: the text of ``vllm serve --help``.
    """

    modes: tuple[str, ...]
    help: str


SPECS: dict[str, FlagSpec] = {
    "hf_compat": FlagSpec(
        modes=("exact", "strict", "rules"),
        help="Answer as Hugging Face `generate()` does: its defaults and generation_config.json "
        "rules, its stopping rule, its logits processors over the whole prompt and output, and its "
        "sampled tokens for a seed. `exact` also computes the very bits of its logits, slower. "
        "`strict` refuses to start where a layer or a setting would cost the bits of its logits. "
        "`rules` keeps generate()'s rules on vLLM's own layers, whatever these compute.",
    ),
    "split_qkv": FlagSpec(
        modes=(),
        help="Compute q, k and v (and gate and up) as separate projections, as Hugging Face does; "
        "on with --hf-compat unless --no-split-qkv is given.",
    ),
    "deterministic": FlagSpec(
        modes=("batch",),
        help="Make the bits of an answer depend on model, weights and tokens alone: not on batch, "
        "caching, threads, tensor parallelism or machine. `batch` is upstream's batch-invariant "
        "mode on NVIDIA GPUs, which promises less.",
    ),
    "receipts": FlagSpec(
        modes=("16", "32", "64"),
        help="Make a receipt of each answer, which `vllm audit` checks on another machine; needs "
        "--hf-compat and --deterministic. A number is the bytes for each token, instead of 8.",
    ),
}

VARIABLES = {name: f"VLLM_{name.upper()}" for name in SPECS}
"""The environment variable of each flag."""

_OTHER_VARIABLES = (
    "VLLM_FORK_CPU_ISA",
    "VLLM_FORK_CUDA_DEPENDENT_LAUNCH",
    "VLLM_FORK_CUDA_TENSOR_CORES",
    "VLLM_FORK_LIBRARY",
    "VLLM_FORK_OTHER_BITS",
)
_decided: dict[str, FlagValue] = {}
_WORDS = {"1": True, "true": True, "0": False, "false": False}


def _make_variables_known() -> None:
    """Let upstream know the fork's variables, which it would warn of, or refuse, as unknown."""
    for variable in (*VARIABLES.values(), *_OTHER_VARIABLES):
        envs.environment_variables.setdefault(variable, lambda name=variable: os.environ.get(name))


_make_variables_known()


def check_flag(name: str, value: object) -> FlagValue:
    """Return `value`, False for None.

    Raises:
        ValueError: not a value of the flag; the sentence names those that are.
    """
    spec = SPECS[name]
    if value is False or value is None:
        return False
    if value is not True and value not in spec.modes:
        accepted = ", ".join(map(repr, (True, False, *spec.modes)))
        raise ValueError(f"{name}={value!r} is not a value of this flag; use one of {accepted}.")
    assert isinstance(value, bool | str)
    return value


def given_or_variable(name: str, given: FlagValue | None) -> FlagValue | None:
    """Return the value of an argument, or that of the flag's variable if there is no argument.

    `log_decisions` says that a variable has decided.

    Args:
        name: of the flag.
        given: the argument, which is not checked; None if nobody has given it.

    Returns:
        None if there is neither.

    Raises:
        ValueError: the variable has no value of the flag; the sentence names those that are.
    """
    text = os.environ.get(VARIABLES[name])
    if given is not None or not text:
        return given
    value = _WORDS.get(text.lower(), text)
    if isinstance(value, str) and value not in SPECS[name].modes:
        accepted = ", ".join(("1", "0", *SPECS[name].modes))
        raise ValueError(
            f"{VARIABLES[name]}={text!r} is not a value of this variable; use one of {accepted}."
        )
    _decided[name] = value
    return value


def log_decisions() -> None:
    """Say once of each flag that a variable has decided it in this process.

    Flags are read before vLLM has set up its log, on a command line for one.
    """
    for name, value in _decided.items():
        logger.info_once(
            "%s=%r, as the environment variable %s says: no argument says otherwise.",
            name, value, VARIABLES[name],
        )  # fmt: skip
