"""The fork's engine flags: declared, checked and carried to the workers in one place.

The way of a flag: ``LLM(hf_compat=True)`` or ``vllm serve --hf-compat`` sets a field of
``EngineArgs``, which is None otherwise; `ForkFlags.from_engine_args` checks it, or reads the
environment variable that is its default; `ForkFlags.carry` puts it into
``VllmConfig.additional_config``, which vLLM pickles to every worker process and includes in its
compilation-cache key; everything else asks `ForkFlags.of(vllm_config)`.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from vllm.fork.flags import server_flags
from vllm.fork.flags.flag_values import SPECS, VARIABLES, FlagValue, check_flag, given_or_variable
from vllm.fork.flags.misspelt_flags import suggest_flags

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

CONFIG_KEY = "fork_flags"
"""Key of the flags in ``VllmConfig.additional_config``."""

IS_TWIN = "fork_is_twin"
"""Key there of an engine that computes a twin (`vllm.twin`), and no user's model."""

GROUP_TITLE = "ParityConfig"


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
        return bool(self.has_hf_layers if self.split_qkv is None else self.split_qkv)

    @property
    def has_hf_layers(self) -> bool:
        """Whether layers compute with Hugging Face's operations, and not vLLM's own."""
        return bool(self.hf_compat) and self.hf_compat != "rules"

    @property
    def has_hf_definition(self) -> bool:
        """Whether the model is the function that Transformers' class is, by the layers of either
        flag: deterministic mode alone has the bits of a model in `attach()`.
        """
        return self.has_hf_layers or (self.is_portable and not self.hf_compat)

    @property
    def hf_compat_as_given(self) -> str:
        """`hf_compat` as it is written in Python, for a sentence about it."""
        mode = f'"{self.hf_compat}"' if isinstance(self.hf_compat, str) else self.hf_compat
        return f"hf_compat={mode}"

    @property
    def as_given(self) -> str:
        """The flag that promises what an answer is, likewise."""
        return self.hf_compat_as_given if self.hf_compat else "deterministic=True"

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
        """Read and check the flags of ``EngineArgs``; those that are None have their variable's.

        Raises:
            ValueError: see `check_flag` and `given_or_variable`.
        """
        values: dict[str, Any] = {
            field.name: given_or_variable(field.name, getattr(engine_args, field.name))
            for field in fields(cls)
        }
        return cls(**values)

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> ForkFlags:
        """Read the flags that an engine or worker process was started with."""
        additional = vllm_config.additional_config
        carried = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
        return _made(**carried) if carried else cls()

    def carry(self, additional_config: dict[str, Any]) -> dict[str, Any]:
        """Return `additional_config` with the flags that are on; unchanged if none is."""
        if not any(asdict(self).values()):
            return additional_config
        return {**additional_config, CONFIG_KEY: asdict(self)}


@functools.lru_cache(typed=True)  # every request asks, and checking takes longer than asking
def _made(**values: FlagValue | None) -> ForkFlags:
    return ForkFlags(**values)  # type: ignore[arg-type]


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


def _default(name: str) -> str | None:
    """Return what stands for the flag's variable until the command line was read, and in --help."""
    text = os.environ.get(VARIABLES[name])
    return f"{VARIABLES[name]}={text}" if text else None


def _reader(name: str) -> Callable[[str], FlagValue | None]:
    """Return what reads a flag's text; `_FlagAction` checks what was on the command line."""
    default = _default(name)

    def read(text: str) -> FlagValue | None:
        if text != default:
            return text
        try:
            return given_or_variable(name, None)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Add the fork's flags to vLLM's command line, in a group of their own.

    A variable is read when the command line is, and only if its flag is not there.
    """
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
            type=_reader(name),
            default=_default(name),
            metavar="|".join(spec.modes) or None,
            help=f"{spec.help} The environment variable {VARIABLES[name]} is its default.",
        )
    server_flags.add_cli_args(parser, group)
    suggest_flags(parser)
