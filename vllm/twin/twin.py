"""A twin: a small model of a configuration, on disk, and how each side computes it."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, PreTrainedConfig

from vllm.deterministic.guard import InexactOperationError
from vllm.platforms import current_platform
from vllm.twin import engine_side, transformers_side
from vllm.twin.layers import kinds_of_layers, with_few_layers
from vllm.twin.setting import EngineSetting, Steps
from vllm.twin.sizes import LONGEST_TEXT, with_small_sizes
from vllm.twin.texts import texts
from vllm.twin.weights import randomise, write_checkpoint

_SHORTEST = 16
"""Tokens that texts with their answers have room for, however few an engine takes."""


_MAX_SAID = 400
"""Characters of what an error says."""


class NoTwin(ValueError):
    """A configuration that no twin can be made of; the sentence says why."""


class Stops(RuntimeError):
    """A side that ends in an error; the sentence names it."""

    def __init__(self, side: str, error: Exception) -> None:
        super().__init__(f"{side} does not run its twin: {_named_error(error)}")


@contextmanager
def _named(side: str) -> Iterator[None]:
    """Turn an error of any class, of upstream's engine or Transformers' model, into `Stops`."""
    try:
        yield
    except Exception as error:
        raise Stops(side, error) from error


def _named_error(error: Exception) -> str:
    return f"{type(error).__name__}: {_said(error)}"


def _said(error: Exception) -> str:
    """Return what an error says, in one line; the line that it comes from if that is nothing."""
    said = str(error)
    if isinstance(error, ValidationError):
        said = "; ".join(one["msg"] for one in error.errors())
    frames = traceback.extract_tb(error.__traceback__)
    line = " ".join(said.split()) or (frames[-1].line if frames else "") or ""
    return shorten(line, _MAX_SAID, placeholder=" ...").rstrip(".:")


@dataclass(frozen=True)
class Twin:
    """What is computed on both sides.

    Attributes:
        config: Transformers' configuration with small sizes.
        longest: tokens of the longest text with its answer.
        remote_code: whether the model's own code is run.
    """

    config: PreTrainedConfig
    longest: int = LONGEST_TEXT
    remote_code: bool = False

    @classmethod
    def of(cls, config: PreTrainedConfig, max_model_len: int, remote_code: bool = False) -> Twin:
        """Make a twin of a model.

        Args:
            config: as Transformers reads it.
            max_model_len: tokens of the longest text that the engine takes.
            remote_code: whether the model's own code may be run.

        Raises:
            NoTwin: Transformers makes no model of the configuration, or none with small sizes.
        """
        small = _remade(config, with_small_sizes(config.to_dict(), max_model_len))
        few = _with_few_layers(small, remote_code)
        return cls(few, max(min(max_model_len, LONGEST_TEXT), _SHORTEST), remote_code)

    def with_field(self, name: str, value: Any) -> Twin:
        """Return a twin with another value of a field."""
        fields = {**self.config.to_dict(), name: value}
        return Twin(_remade(self.config, fields), self.longest, self.remote_code)

    @property
    def vocab_size(self) -> int:
        """Of the text part."""
        size: int = self.config.get_text_config().vocab_size
        return size

    def texts(self) -> list[list[int]]:
        """Return the token ids of each text."""
        return texts(self.vocab_size, self.longest)

    @contextmanager
    def on_disk(self, seed: int = 0) -> Iterator[Path]:
        """Write a checkpoint with random weights, for a while."""
        with tempfile.TemporaryDirectory(prefix="vllm-twin-") as folder:
            architectures = self.config.architectures  # before a model writes its own
            with torch.random.fork_rng(devices=[]):  # some weights keep what they begin with
                torch.manual_seed(seed)
                model = _model_of(self.config, self.remote_code, torch.float32)
            randomise(model, seed)
            write_checkpoint(model, Path(folder), architectures)
            del model
            yield Path(folder)


def _with_few_layers(small: PreTrainedConfig, remote_code: bool) -> PreTrainedConfig:
    """Return a configuration with few layers, of each kind one; where single layers cannot be
    chosen, since a field gives their period, with all up to the last new kind.
    """
    model = _on_meta(small, remote_code)
    few = _remade(small, with_few_layers(small.to_dict(), model))
    kinds = _kinds(model, small)
    if not kinds <= _kinds(_on_meta(few, remote_code), few):
        few = _remade(small, with_few_layers(small.to_dict(), model, most=None))
    return few


def _kinds(model: Any, config: PreTrainedConfig) -> set[Hashable]:
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    return set(kinds_of_layers(model, layers))


def _on_meta(config: PreTrainedConfig, remote_code: bool) -> Any:
    with torch.device("meta"):
        return _model_of(config, remote_code)


def _remade(config: PreTrainedConfig, fields: Mapping[str, Any]) -> PreTrainedConfig:
    """Return a configuration of the same class with other fields."""
    left_out = ("quantization_config", "_name_or_path", "dtype", "torch_dtype")
    own = {name: value for name, value in fields.items() if name not in left_out}
    try:
        return type(config).from_dict(own)
    except Exception as error:  # of any class that a configuration checks itself with
        raise NoTwin(f"its configuration cannot be made small: {_named_error(error)}") from None


def _model_of(config: PreTrainedConfig, remote_code: bool, dtype: Any = None) -> Any:
    try:
        return AutoModelForCausalLM.from_config(config, trust_remote_code=remote_code, dtype=dtype)
    except Exception as error:  # whatever the class of a model asks for
        raise NoTwin(f"Transformers makes no model of it: {_named_error(error)}") from None


@dataclass(frozen=True)
class Outcome:
    """What both sides compute of a twin's texts.

    Attributes:
        engine: the logits of each text, [steps, vocab_size].
        transformers: likewise.
        dtype: of the models. Logits of deterministic mode are float32 whatever it is.
        precise: likewise in float64; None if Transformers' class has no such mode, or nobody needs
            it.
    """

    engine: list[Steps]
    transformers: list[Steps]
    dtype: torch.dtype
    precise: list[Steps] | None = None

    @property
    def is_equal(self) -> bool:
        """Whether all bits are equal."""
        return all(
            torch.equal(one.float(), other.float())  # attached models have float32 logits
            for one, other in zip(self.engine, self.transformers, strict=True)
        )

    @property
    def agrees(self) -> bool:
        """Whether the engine is as near to the precise logits, in each step, as rounding explains;
        without precise ones, whether it is near to Transformers' own.
        """
        if self.is_equal:
            return True
        limit = _limit(self.dtype)
        wanted = self.precise or self.transformers
        for engine, transformers, precise in zip(
            self.engine, self.transformers, wanted, strict=True
        ):
            apart, own = _errors(engine, precise), _errors(transformers, precise)
            least = self.spread * torch.finfo(self.dtype).eps * _MIN_ROUNDING
            if not bool((apart <= limit * own.clamp(min=least)).all()):
                return False
        return True

    @property
    def difference(self) -> float:
        """The largest difference of logits; infinite if one is no number on one side alone."""
        found = 0.0
        for own, other in zip(self.engine, self.transformers, strict=True):
            apart = (own.double() - other.double()).abs()
            apart[own.isnan() & other.isnan()] = 0
            found = max(found, float(apart.nan_to_num(nan=torch.inf).max()))
        return found

    @property
    def spread(self) -> float:
        """The standard deviation of Transformers' logits."""
        return float(torch.cat(self.transformers).double().std())


def _limit(dtype: torch.dtype) -> float:
    """Return how many times Transformers' own root-mean-square error a step of the engine may have.

    GPUs' kernels may multiply float32 as TF32, with 13 bits less.
    """
    if current_platform.is_cpu():
        return 16.0 if dtype == torch.float32 else 2.0
    return 2.0**14 if dtype == torch.float32 else 4.0


_MIN_ROUNDING = 0.5
"""Units in the last place of the logits' spread: what any other order of additions makes."""


def _errors(some: Steps, precise: Steps) -> torch.Tensor:
    """Return the root-mean-square difference of each step, [steps]; infinite where it is NaN."""
    return (some.double() - precise.double()).square().mean(-1).sqrt().nan_to_num(nan=torch.inf)


def compute(twin: Twin, folder: Path, setting: EngineSetting, is_precise: bool = False) -> Outcome:
    """Compute a twin on both sides.

    Args:
        twin: on disk.
        folder: where.
        setting: of the engine.
        is_precise: whether Transformers computes in float64, too, if bits are not equal.

    Raises:
        Stops: one of them ends in an error.
    """
    given = twin.texts()
    with _named("vLLM"), engine_side.engine(folder, setting, twin.longest) as started:
        answers, logits = engine_side.answers(started, given)
    dtype = getattr(torch, setting.dtype)

    def by_transformers(dtype: torch.dtype, is_attached: bool = True) -> list[Steps]:
        model = transformers_side.load(folder, dtype, setting, twin.longest, is_attached)
        return transformers_side.logits(model, given, answers)

    with _named("Transformers"):
        try:
            own = by_transformers(dtype)
        except (ValueError, InexactOperationError):  # `attach` does not take the model
            own = by_transformers(dtype, is_attached=False)
    if not is_precise or Outcome(logits, own, dtype).is_equal:
        return Outcome(logits, own, dtype)
    try:
        return Outcome(logits, own, dtype, by_transformers(torch.float64))
    except (RuntimeError, ValueError):  # an operator without float64
        return Outcome(logits, own, dtype)
