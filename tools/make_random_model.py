"""Write a model of a real architecture and shape with random weights, without any download.

The shapes of ``model_shapes.toml`` are those of well-known checkpoints, so that every
architecture can be compared between engines at its real shape. Only the weights are random.

    python -m tools.make_random_model opt-125m /tmp/opt-125m
    python -m tools.make_random_model mistral-7b /tmp/mistral --layers 2 --narrow

The tokenizer is the bundled one of ``models/tiny-python-llama`` with 4,096 pieces. ``vocab_size``
keeps its real, larger value, so the model emits ids which no piece spells: they decode to nothing.
Compare token ids, not text. BOS, EOS and PAD are moved to the ids which the model's configuration
names (a BOS which is the model's PAD would be masked out by Transformers), and BOS is added to
prompts only where the real tokenizer does so.

``generation_config.json`` holds the real model's token ids and sampling defaults. Left out is
Gemma's ``cache_implementation``, which names a cache class rather than a property of the answer.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tools.borrowed_tokenizer import write_tokenizer
from tools.model_shapes import ALIASES, SHAPES, find_shape, make_config

MAX_BYTES = 4 * 1024**3
"""Refuse larger weights: they are a mistyped command more often than a wish."""

EMBEDDING_STD = 0.05
"""Small beside the blocks' outputs (spread 1), or tied embeddings would repeat the last token."""

VECTOR_STD = 0.05
"""Spread of biases and norm gains around their usual start (0 or 1), so that each is exercised."""


def check_size(config: Any, dtype: torch.dtype) -> None:
    """Refuse a model whose weights would not be reasonable on a disk.

    Raises:
        ValueError: the weights exceed ``MAX_BYTES``.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size > MAX_BYTES:
        raise ValueError(
            f"the weights would take {size / 1024**3:.1f} GiB, more than "
            f"{MAX_BYTES / 1024**3:.0f}: ask for fewer layers or the narrow preset"
        )


def weight_std(module: torch.nn.Module, weight: torch.Tensor, init_scale: float) -> float:
    """The spread to draw a matrix of ``module`` with.

    ``init_scale / sqrt(fan in)`` keeps a signal's variance through the layer. At real widths
    that is 0.016 (4,096) to 0.063 (256), which is where trained checkpoints lie as well.
    """
    if isinstance(module, torch.nn.Embedding):
        return EMBEDDING_STD
    # Conv1D (GPT-2) stores [in, out]; Linear and expert stacks store [..., out, in].
    fan_in = weight.shape[0] if isinstance(module, Conv1D) else weight.shape[-1]
    return init_scale / math.sqrt(fan_in)


@torch.no_grad()
def randomize(model: PreTrainedModel, seed: int, init_scale: float) -> None:
    """Overwrite every parameter of ``model`` in place.

    The numbers are drawn in float32 from one generator of the model's device, in the order of the
    modules, so a seed gives the same weights in every dtype, up to rounding. Vectors (biases, norm
    gains) keep their initial 0 or 1 plus a little noise. Tied matrices are drawn once, as
    embeddings.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    seen: set[int] = set()
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            if id(weight) in seen:
                continue
            seen.add(id(weight))
            noise = torch.empty_like(weight, dtype=torch.float32).normal_(generator=generator)
            if weight.dim() > 1:
                weight.copy_(noise * weight_std(module, weight, init_scale))
            else:
                weight.copy_(weight.float() + noise * VECTOR_STD)


@torch.no_grad()
def soften_embeddings(model: PreTrainedModel) -> None:
    """Undo in place what a family does to enlarge the embeddings before the first block.

    Gemma multiplies them by the root of the width, and BLOOM normalises them to a spread of 1:
    either way a model with random blocks and tied embeddings would repeat the prompt's last token.
    Gemma's final norm gets the factor instead, so that the spread of the logits stays.
    """
    if model.config.model_type.startswith("gemma"):
        factor = math.sqrt(model.config.hidden_size)
        model.get_input_embeddings().weight.div_(factor)
        gain = model.model.norm.weight  # stored less 1
        gain.add_(1).mul_(factor).sub_(1)
    elif model.config.model_type == "bloom":
        norm = model.transformer.word_embeddings_layernorm
        norm.weight.mul_(EMBEDDING_STD)
        norm.bias.mul_(EMBEDDING_STD)


def make_random_model(
    shape: str,
    directory: Path,
    *,
    seed: int = 0,
    dtype: str | torch.dtype = torch.bfloat16,
    num_layers: int | None = None,
    narrow: bool = False,
    init_scale: float = 1.0,
) -> Path:
    """Write a random model to ``directory`` (made if missing) and return ``directory``.

    Args:
        shape: a key of ``SHAPES`` or ``ALIASES``.
        directory: where to write; files of the same names are replaced.
        seed: the same seed, shape and sizes give the same bytes.
        dtype: of the stored weights, as torch's dtype or its name.
        num_layers: instead of the real number of layers.
        narrow: use the shape's preset of smaller width (the vocabulary keeps its size).
        init_scale: factor on the spread of every matrix but the embeddings.

    Raises:
        ValueError: unknown shape or dtype, no layers, or more weights than ``MAX_BYTES``.
        FileNotFoundError: the bundled tokenizer is missing.
    """
    facts = find_shape(shape)
    dtype = parse_dtype(dtype)
    config = make_config(facts, num_layers=num_layers, narrow=narrow)
    check_size(config, dtype)
    with torch.random.fork_rng(devices=[]):  # the initialisation to be overwritten draws too
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    randomize(model, seed, init_scale)
    soften_embeddings(model)
    model.generation_config = GenerationConfig(**facts.generation)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    write_tokenizer(config, facts.adds_bos, directory)
    return directory


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """``dtype`` as torch's object.

    Raises:
        ValueError: ``dtype`` names no floating-point type of torch.
    """
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"{dtype!r} is no floating-point dtype of torch")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: write one model and say where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=[*SHAPES, *ALIASES], metavar="SHAPE", help="which model")
    parser.add_argument("directory", type=Path, metavar="OUT_DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", type=int, dest="num_layers", help="fewer layers than real")
    parser.add_argument("--narrow", action="store_true", help="smaller width than real")
    parser.add_argument("--init-scale", type=float, default=1.0)
    options = vars(parser.parse_args(arguments))
    try:
        written = make_random_model(options.pop("shape"), options.pop("directory"), **options)
    except ValueError as error:
        parser.error(str(error))
    print(f"wrote {written}")


if __name__ == "__main__":
    main()
