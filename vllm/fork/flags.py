"""The fork's engine flags: declared, checked and carried to the workers in one place.

The way of a flag: ``LLM(hf_compat=True)`` or ``vllm serve --hf-compat`` sets a field of
``EngineArgs``; `ForkFlags.from_engine_args` checks it; `ForkFlags.carry` puts it into
``VllmConfig.additional_config``, which vLLM pickles to every worker process and includes in its
compilation-cache key; everything else asks `ForkFlags.of(vllm_config)`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from vllm.fork import server_flags

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

CONFIG_KEY = "fork_flags"
"""Key of the flags in ``VllmConfig.additional_config``."""

GROUP_TITLE = "ParityConfig"

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
        modes=("exact", "strict"),
        help="Answer as Hugging Face `generate()` does: its defaults and generation_config.json "
        "rules, its stopping rule, its logits processors over the whole prompt and output, and its "
        "sampled tokens for a seed. `exact` also computes the very bits of its logits, slower. "
        "`strict` refuses to start where a layer or a setting would cost the bits of its logits.",
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


@dataclass(frozen=True)
class ForkFlags:
    """The checked values of the fork's flags; all off is upstream vLLM, bit for bit.

    Attributes:
        split_qkv: None follows `hf_compat`; see `splits_projections`.
    """

    hf_compat: FlagValue = False
    split_qkv: FlagValue | None = None
    deterministic: FlagValue = False
    receipts: FlagValue = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, check_flag(field.name, value))

    @property
    def splits_projections(self) -> bool:
        """Whether fused projections are computed as separate ones."""
        return bool(self.hf_compat if self.split_qkv is None else self.split_qkv)

    @property
    def hf_compat_as_given(self) -> str:
        """`hf_compat` as it is written in Python, for a sentence about it."""
        mode = f'"{self.hf_compat}"' if isinstance(self.hf_compat, str) else self.hf_compat
        return f"hf_compat={mode}"

    @property
    def is_portable(self) -> bool:
        """Whether layers have the bits of the fork's specification."""
        return self.deterministic is True

    @property
    def receipt_bytes(self) -> int:
        """How many bytes of a receipt each token has; 0 without receipts."""
        return 8 * int(self.receipts) if isinstance(self.receipts, bool) else int(self.receipts)

    @property
    def has_sampler(self) -> bool:
        """Whether a sampler of the fork takes the place of vLLM's."""
        return bool(self.hf_compat) or self.is_portable

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> ForkFlags:
        """Read and check the flags of ``EngineArgs``.

        Raises:
            ValueError: see `check_flag`.
        """
        return cls(**{field.name: getattr(engine_args, field.name) for field in fields(cls)})

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> ForkFlags:
        """Read the flags that an engine or worker process was started with."""
        additional = vllm_config.additional_config
        carried = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
        return cls(**carried) if carried else cls()

    def carry(self, additional_config: dict[str, Any]) -> dict[str, Any]:
        """Return `additional_config` with the flags that are on; unchanged if none is."""
        if not any(asdict(self).values()):
            return additional_config
        return {**additional_config, CONFIG_KEY: asdict(self)}


class _FlagAction(argparse.Action):
    """``--flag``, ``--flag MODE`` and ``--no-flag``, checked while the command line is read."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        negated = option_string is not None and option_string.startswith("--no-")
        if negated and values:
            raise argparse.ArgumentError(self, f"{option_string} takes no value.")
        value = values or not negated
        try:
            setattr(namespace, self.dest, check_flag(self.dest, value))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        if self.dest == "hf_compat":
            server_flags.drain_by_default(namespace, bool(value))


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Add the fork's flags to vLLM's command line, in a group of their own."""
    group = parser.add_argument_group(
        title=GROUP_TITLE, description="Parity with Hugging Face Transformers, and determinism."
    )
    for name, spec in SPECS.items():
        option = name.replace("_", "-")
        group.add_argument(
            f"--{option}",
            f"--no-{option}",
            dest=name,
            action=_FlagAction,
            nargs="?" if spec.modes else 0,
            default=getattr(ForkFlags, name),
            metavar="|".join(spec.modes) or None,
            help=spec.help,
        )
    server_flags.add_cli_args(group)
