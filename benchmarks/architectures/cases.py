"""What is tried: each type of model that both sides know, in the variants that are in use."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedConfig

from tools.definitions.bases import Base, base_of, known_types
from tools.definitions.proof import random_model, small_arguments
from vllm.twin.weights import write_checkpoint

LENGTHS = (5, 11, 23, 41, 67, 100)
"""Tokens of the prompts: fewer than a window, and more than four."""

NEW_TOKENS = 16
MAX_LENGTH = 128
_SEED = 5


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
        base: its type, and the configuration of a known checkpoint.
        variant: name of what is changed in it; empty for nothing.
    """

    base: Base
    variant: str = ""

    @property
    def name(self) -> str:
        """The type, and the variant."""
        return ", ".join(one for one in (self.base.model_type, self.variant) if one)

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The configuration with small sizes.

        Raises:
            Exception: of any class that Transformers checks a configuration with.
        """
        changed = self.base.variants[self.variant] if self.variant else {}
        return self.base.config_class(**small_arguments(self.base, changed))

    def prompts(self) -> list[list[int]]:
        """Return token ids of each prompt."""
        draw = random.Random(_SEED)
        ids = range(4, self.config.get_text_config().vocab_size - 8)
        return [draw.choices(ids, k=length) for length in LENGTHS]

    def write(self, folder: Path) -> None:
        """Write a checkpoint with random weights in float32."""
        write_checkpoint(random_model(self.config), folder, None)


def cases(types: Sequence[str]) -> Iterator[Case]:
    """Yield the base and all variants of types.

    Args:
        types: Transformers' names; none for all that vLLM knows, too.

    Raises:
        ValueError: Transformers has no causal language model of a type.
    """
    for name in types or known_types():
        base = base_of(name)
        for variant in ("", *base.variants):
            yield Case(base, variant)
