"""Shapes of well-known checkpoints, read from ``model_shapes.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from tools.internlm2 import InternLM2Config, InternLM2ForCausalLM

AutoConfig.register(InternLM2Config.model_type, InternLM2Config)
AutoModelForCausalLM.register(InternLM2Config, InternLM2ForCausalLM)


@dataclass(frozen=True)
class Shape:
    """A checkpoint's published numbers.

    Attributes:
        source: name of the checkpoint on the Hugging Face Hub whose numbers these are.
        config: the arguments of ``AutoConfig.for_model``, ``model_type`` included.
        generation: the content of ``generation_config.json``.
        narrow: replacements in ``config`` for a model of a few megabytes per layer; head
            dimension, head grouping and everything else special to the family stay.
        adds_bos: whether the real tokenizer puts BOS before a prompt.
        none: arguments in ``config`` that are None, which a file of this format cannot say.
    """

    source: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    narrow: Mapping[str, Any]
    adds_bos: bool
    none: Sequence[str] = ()


SHAPES = {
    name: Shape(**facts)
    for name, facts in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}

ALIASES = {
    "gpt-neox": "pythia-160m",
    "gpt_bigcode-small": "tiny-starcoder",
    "llama": "tinyllama-1.1b",
    "falcon": "falcon-7b",
    "internlm2": "internlm2-1.8b",
    "mixtral": "mixtral-8x7b",
    "qwen3-moe": "qwen3-30b-a3b",
    "deepseek-v2": "deepseek-v2-lite",
}
"""Names of architectures for the one shape of theirs which is here."""


def find_shape(name: str) -> Shape:
    """The shape called ``name`` (or aliased so).

    Raises:
        ValueError: there is none; the message lists all.
    """
    try:
        return SHAPES[ALIASES.get(name, name)]
    except KeyError:
        known = ", ".join([*SHAPES, *ALIASES])
        raise ValueError(f"unknown shape {name!r}; known are {known}") from None


def make_config(shape: Shape, *, num_layers: int | None = None, narrow: bool = False) -> Any:
    """The Transformers configuration of ``shape``, with fewer layers or narrower if asked.

    Raises:
        ValueError: ``num_layers`` is below 1.
    """
    if num_layers is not None and num_layers < 1:
        raise ValueError(f"a model needs at least one layer, not {num_layers}")
    values = {**shape.config, **(shape.narrow if narrow else {}), **dict.fromkeys(shape.none)}
    layers_key = "n_layer" if "n_layer" in values else "num_hidden_layers"
    values[layers_key] = num_layers or values[layers_key]
    return AutoConfig.for_model(**values)
